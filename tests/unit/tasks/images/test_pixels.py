"""Decoding: once, to the right pixels, in any number of threads, and on after a kill."""

import errno
import json
import os
import struct
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.tasks.images import decoding, formats, pixels
from tasklab.tasks.images.decoding import Transform
from tests.decoded import CENTRE, SIDE, expected, images, rows_of
from tests.helpers import flip, refuses


@pytest.fixture
def split(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK", 4)
    return images(tmp_path / "data", 40)


@pytest.mark.parametrize("size", [(640, 480), (33, 500), (224, 224), (100, 90), (301, 225)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_for_evaluation_are_open_clips_bit_for_bit(size, mode):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), mode)
    resize, cut, to_rgb = open_clip.image_transform(224, is_train=False).transforms[:3]
    theirs = np.asarray(to_rgb(cut(resize(image)))).transpose(2, 0, 1)
    assert np.array_equal(Transform("centre", 224)(image.convert("RGB")), theirs)


@pytest.mark.parametrize("size", [(900, 30), (20, 900), (700, 3), (5000, 1)])
def test_of_a_strip_only_the_centre_is_resized(size, monkeypatch):
    x, y = np.meshgrid(*(np.arange(n) for n in size))
    waves = [128 + 60 * np.sin(x / 9 + y / 7 + phase) for phase in range(3)]
    pixels = np.stack(waves, 2).astype(np.uint8)  # noise would be clipped between the two passes
    image, side, resize = Image.fromarray(pixels), 32, Image.Image.resize
    scale = side / min(size)
    whole = image.resize([round(scale * n) for n in size], Image.Resampling.BICUBIC)
    left, top = (round((n - side) / 2) for n in whole.size)
    theirs = np.asarray(whole.crop((left, top, left + side, top + side))).transpose(2, 0, 1)

    def small(self, size, *more):
        assert max(size) <= decoding._LONG * side
        return resize(self, size, *more)

    monkeypatch.setattr(Image.Image, "resize", small)
    ours = Transform("centre", side)(image)
    assert np.abs(ours.astype(int) - theirs).max() <= 2


def test_other_transforms():
    image = Image.new("RGB", (40, 20), "red")
    assert Transform("whole", 12)(image).shape == (3, 12, 12)
    assert np.array_equal(
        Transform("native", 20)(image.crop((0, 0, 20, 20))),
        np.broadcast_to(np.array([255, 0, 0], np.uint8)[:, None, None], (3, 20, 20)),
    )
    refuses("is 40 x 20; all should be 20 x 20", lambda: Transform("native", 20)(image))


@pytest.mark.parametrize("jobs", [1, 2])
def test_rows_labels_and_sizes(jobs, split, tmp_path):
    rows = rows_of(split)
    note = {"task": "x"}
    made = pixels.decode(
        tmp_path / "out", split, rows, CENTRE, jobs=jobs, progress=False, note=note
    )
    assert np.array_equal(made.x, expected(split, rows))
    assert np.array_equal(made.y, split.labels[rows])
    assert made.sizes.tolist() == [[18 + row % 5, 20 + row % 7] for row in rows]
    assert made.manifest["task"] == "x" and made.manifest["images"] == 30
    assert isinstance(made.x, np.memmap)
    assert made.damaged() == [] and made.folder == tmp_path / "out"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "out", "out.lock"]


def test_the_digest_tells_pixels_apart_and_nothing_else(split, tmp_path):
    rows = rows_of(split)

    def digest(name, jobs=1):
        options = {"jobs": jobs, "progress": False}
        return pixels.decode(tmp_path / name, split, rows, CENTRE, **options).manifest["digest"]

    first = digest("a")
    assert first == digest("b", jobs=2)
    with Image.open(split.files[rows[3]]) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(split.files[rows[3]])
    assert first != digest("c")


def test_pixels_are_decoded_and_compared_once(split, tmp_path, monkeypatch):
    pixels.decode(tmp_path / "out", split, rows_of(split), CENTRE, progress=False)
    monkeypatch.setattr(decoding.Job, "run", None)
    pixels.decode(tmp_path / "out", split, rows_of(split), CENTRE, progress=False)
    made = pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False)
    assert made.damaged() == []
    monkeypatch.setattr(pixels, "_block_sha256", None)
    assert made.damaged() == [] and pixels.arrays_in(tmp_path / "out").damaged() == []


DAMAGES = {
    "no manifest": ("manifest.json", None), "empty manifest": ("manifest.json", b""),
    "half a manifest": ("manifest.json", b'{"shape": [3'),
    "another manifest": ("manifest.json", b"{}"), "empty pixels": ("x.npy", b""),
    "longer pixels": ("x.npy", b"+"), "cut off pixels": ("x.npy", b"-"),
    "a bit of the manifest": ("manifest.json", 300), "a bit of a size": ("sizes.npy", -1),
    "a bit of a label": ("y.npy", -8), "no labels": ("y.npy", None),
    "other labels": ("y.npy", b"\1"),
}  # fmt: skip


def damage(folder, how):
    name, content = DAMAGES[how]
    file = folder / name
    if content is None:
        file.unlink()
    elif isinstance(content, int):
        flip(file, content)
    elif content in (b"+", b"-"):
        file.write_bytes(
            file.read_bytes() + content if content == b"+" else file.read_bytes()[:999]
        )
    elif len(content) == 1:  # instead of every value
        head = np.load(file, mmap_mode="r").offset
        file.write_bytes(file.read_bytes()[:head] + content * (file.stat().st_size - head))
    else:
        file.write_bytes(content)


@pytest.mark.parametrize("how", DAMAGES)
def test_what_is_damaged_is_decoded_again(how, split, tmp_path):
    rows = rows_of(split)
    pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False)
    damage(tmp_path / "out", how)
    assert pixels.arrays_in(tmp_path / "out") is None
    made = pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False)
    assert np.array_equal(made.x, expected(split, rows)) and pixels.arrays_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job.json", b""),
        ("job.json", b'{"version": 1, "tra'),
        ("x.npy", None),
        ("x.npy", b""),
        ("sizes.npy", b"\x93NUMPY"),
        ("rows.npy", b""),
        ("y.npy", None),
        ("done.jsonl", b'[1]\n{"chunk": 99, "sha256": "x", "seconds": 1}\n\xff\xfe\n{"chunk": []}'),
    ],
)
def test_what_is_half_written_is_begun_anew(name, content, split, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    rows, file = rows_of(split), tmp_path / "out.partial" / name
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(decoding.Job, "run", stop)
        pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    made = pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False, jobs=1)
    assert np.array_equal(made.x, expected(split, rows))
    assert np.array_equal(made.y, split.labels[rows])


def test_changed_pixels_are_found(split, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "BLOCK", 8)
    made = pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False)
    assert made.damaged() == []
    flip(tmp_path / "out" / "x.npy", made.x.offset + 19 * 3 * SIDE**2 + 5)
    assert made.damaged() == [2] and made.damaged(16) == [] and made.damaged(17) == [2]
    assert pixels.arrays_in(tmp_path / "out").damaged() == [2]
    pixels.discard(made)
    assert pixels.arrays_in(tmp_path / "out") is None
    made = pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False)
    assert np.array_equal(made.x, expected(split, np.arange(40))) and made.damaged() == []


def test_files_are_known_by_what_is_in_them(tmp_path):
    files, memory = [tmp_path / "a", tmp_path / "b"], tmp_path / "x" / "contents.json"
    for file in files:
        file.write_text(file.name)

    def contents():
        return pixels.contents([str(file) for file in files], memory)

    before, times = contents(), files[0].stat()
    assert contents() == before and len(set(before)) == 2
    os.utime(files[0])
    assert contents() == before  # another time, the same file
    files[0].write_text("c")
    os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time
    assert contents()[0] != before[0] and contents()[1] == before[1]
    files[0].write_text("a")
    files[0].rename(tmp_path / "c")
    files[1].rename(files[0])
    (tmp_path / "c").rename(files[1])
    assert contents() == before[::-1]
    for text in ("", "{", "[]", "3", '{"a": 1}', json.dumps({str(files[0]): None})):
        memory.write_text(text)
        assert contents() == before[::-1]


def test_an_image_that_cannot_be_decoded_is_named_and_the_rest_is_kept(split, tmp_path):
    rows, bad = np.arange(40), Path(split.files[22])
    good = bad.read_bytes()
    for jobs, content in ((1, good[:60]), (2, b"<html>404</html>")):
        bad.write_bytes(content)
        with pytest.raises(TasklabError, match="022.png is not an image that can be decoded"):
            pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False, jobs=jobs)
    os.utime(bad, ns=(0, 0))
    bad.write_bytes(good)
    made = pixels.decode(tmp_path / "out", split, rows, CENTRE, progress=False, jobs=1)
    assert np.array_equal(made.x, expected(split, rows))


def test_all_images_that_cannot_be_decoded_are_named(split, tmp_path, monkeypatch):
    bad = (3, 5, 6, 30)
    for row in bad:
        Path(split.files[row]).write_bytes(b"<html>404</html>")
    for jobs in (1, 2):
        with pytest.raises(decoding.BadImagesError) as error:
            pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False, jobs=jobs)
        told = sorted(error.value.lines)
        assert len(told) == 4
        assert all(
            f"{row:03d}.png is not an image" in line for row, line in zip(bad, told, strict=True)
        )
    log = (tmp_path / "out.partial" / "done.jsonl").read_text().splitlines()
    assert len({json.loads(line)["chunk"] for line in log}) == 7  # the good ones are kept
    sizes = np.load(tmp_path / "out.partial" / "sizes.npy", mmap_mode="r+")
    sizes[20, 0] += 2
    sizes.flush()
    with pytest.raises(decoding.BadImagesError):
        pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False, jobs=1)
    assert np.load(tmp_path / "out.partial" / "sizes.npy")[20].tolist() == [18, 26]
    monkeypatch.setattr(decoding, "BAD", 3)
    with pytest.raises(TasklabError, match="There may be more"):
        pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False, jobs=1)


def test_an_image_of_another_size_is_named(split, tmp_path):
    with pytest.raises(TasklabError, match="000.png: an image is 18 x 20; all should be 16 x 16"):
        native = Transform("native", SIDE)
        pixels.decode(tmp_path / "out", split, np.arange(9), native, progress=False)


ENDS = {
    RuntimeError("boom"): r"000.png cannot be read \(RuntimeError: boom\)",
    MemoryError(): "000.png: there is too little memory to decode it. Decode with fewer",
    OSError(errno.ENOSPC, "no space left"): "cannot write decoded images to .*, or free",
}


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_a_thread_that_fails_is_one_line_and_ends_the_others(error, split, tmp_path, monkeypatch):
    def failing(*_):
        raise error

    broken = (decoding.Job, "_write") if isinstance(error, OSError) else (formats, "rgb")
    monkeypatch.setattr(*broken, failing)
    with pytest.raises(TasklabError, match=ENDS[error]):
        pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False, jobs=2)
    assert not [one for one in threading.enumerate() if "ThreadPool" in one.name]


def test_a_disk_that_is_too_small_is_said_before_any_work(split, tmp_path, monkeypatch):
    monkeypatch.setattr(pixels.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(TasklabError, match="GB are needed .* are free"):
        pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False)


def test_a_folder_that_cannot_be_written(split, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TasklabError, match="cannot write decoded images to .*TASKLAB_DATA"):
        pixels.decode(tmp_path / "file" / "out", split, np.arange(40), CENTRE, progress=False)


def test_arrays_become_tensors_without_a_copy(split, tmp_path):
    made = pixels.decode(tmp_path / "out", split, np.arange(40), CENTRE, progress=False)
    x = torch.from_numpy(made.x)
    x[0] = 0
    assert not made.x[0].any()
    assert pixels.arrays_in(tmp_path / "out").x[0].any()  # the file is as it was


def test_joined_splits_are_read_as_one(tmp_path):
    first, second = images(tmp_path / "a", 5), images(tmp_path / "b", 7)
    both = first.joined(second)
    made = pixels.decode(tmp_path / "out", both, np.arange(12), CENTRE, progress=False)
    assert np.array_equal(made.x, expected(both, np.arange(12)))
    assert both.labels.tolist() == [*first.labels, *second.labels]


def deep(file, top, colours=1):
    """Write a PNG of 16 bits whose levels go up to `top`; Pillow writes none of colours."""
    levels = np.linspace(0, top, 20 * 18 * colours).astype(">u2").reshape(20, -1)
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", 18, 20, 16, {1: 0, 3: 2}[colours], 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    with file.open("wb") as stream:
        stream.write(b"\x89PNG\r\n\x1a\n")
        for name, data in parts.items():
            crc = zlib.crc32(name + data)
            stream.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc))
    return file


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_images_of_16_bits_with_levels_of_fewer_are_refused(colours, bits, tmp_path):
    files = [deep(tmp_path / f"{i}.png", 2**bits - 1 - i, colours) for i in range(3)]
    with pytest.raises(decoding.BadImagesError) as error:
        done(tmp_path / "out", files)
    (line,) = error.value.lines
    assert str(files[0]) in line and f"{2**bits - 1:,}" in line and f"{bits} bits" in line
    assert not (tmp_path / "out").exists()


def done(out, files):
    made = formats.image_files(files, [0] * len(files), None)
    return pixels.decode(out, made, np.arange(len(files)), CENTRE, progress=False, jobs=1)


@pytest.mark.parametrize("colours", [1, 3])
def test_dark_images_among_bright_ones_of_16_bits_are_read_and_told(colours, tmp_path, caplog):
    tops = (65535, 4095, 3000, 16383)
    files = [deep(tmp_path / f"{top}.png", top, colours) for top in tops]
    found = done(tmp_path / "out", files).x.max(axis=(1, 2, 3)).astype(float)
    assert np.allclose(found / found[0], np.array(tops) / 65535, atol=0.005)  # all are resized
    (told,) = caplog.messages
    assert str(files[1]) in told and "1 others" in told
    black = deep(tmp_path / "black.png", 0)
    assert not done(tmp_path / "black", [black]).x.any()
    dark = struct.pack("<IiiHHIIiiII3I", 40, 4, 4, 1, 16, 3, 32, 0, 0, 0, 0, 0xF800, 0x7E0, 0x1F)
    content = b"BM" + struct.pack("<IHHI", 14 + len(dark) + 32, 0, 0, 14 + len(dark)) + dark
    (tmp_path / "a.bmp").write_bytes(content + struct.pack("<H", 0x0841) * 16)  # 5, 6 and 5 bits
    assert done(tmp_path / "bmp", [tmp_path / "a.bmp"]).x.max() == 8


def test_what_viewers_show_and_torchvision_does_not_is_told_once(tmp_path, caplog):
    turn = Image.Exif()
    turn[0x0112] = 6
    plain = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 18, 3), dtype=np.uint8))
    clear, whole = plain.convert("RGBA"), plain.convert("RGBA")
    clear.putpixel((3, 3), (9, 9, 9, 0))
    (palette := plain.quantize(8)).info["transparency"] = 3
    kept = [plain, clear, whole, palette, plain, plain]
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for number, (file, image) in enumerate(zip(files, kept, strict=True)):
        image.save(file, **({"exif": turn} if number > 3 else {}))
    (tmp_path / "5.png").write_bytes((tmp_path / "0.png").read_bytes())
    done(tmp_path / "out", files)
    transparent, turned = sorted(caplog.messages)
    assert "1.png has transparent parts" in transparent and "1 of 5 others" in transparent
    assert "4.png has a note to turn it (EXIF)" in turned and "0 of 5 others" in turned
    caplog.clear()
    done(tmp_path / "again", [files[0], files[2], files[5]])
    assert caplog.messages == []
