"""Checksums: by threads as without, computed once, and each flipped bit found."""

import hashlib

import pytest
import safetensors.torch
import torch

from tasklab.storage import checksums, files, tensors
from tests.helpers import refuses


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(checksums, "_SEEN", {})


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(checksums, "PART", 64)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("cores", [1, 5])
def test_a_tree_is_made_of_its_parts(tmp_path, monkeypatch, small_parts, size, cores):
    content = (bytes(range(256)) * 4)[:size]
    (tmp_path / "file").write_bytes(content)
    monkeypatch.setattr("tasklab.machine.cores", lambda: cores)
    parts = [content[n : n + 64] for n in range(0, max(1, size), 64)]
    tree = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    plain = hashlib.sha256(content).hexdigest()
    file = tmp_path / "file"
    assert checksums.of_file(file) == (("sha256-8m", tree) if size > 64 else ("sha256", plain))
    assert checksums.of_file(file, "sha256-8m")[1] == tree
    assert checksums.file_sha256(file) == checksums.of_file(file, "sha256")[1] == plain
    with pytest.raises(KeyError):
        checksums.of_file(file, "md5")


def test_named_contents_have_one_checksum_in_any_number_of_threads(monkeypatch, small_parts):
    contents = [("a", memoryview(bytes(200))), ("b", memoryview(b"")), ("c", memoryview(b"x" * 64))]
    found = set()
    for cores in (1, 2, 7):
        monkeypatch.setattr("tasklab.machine.cores", lambda cores=cores: cores)
        found.add(checksums.of_parts("text", contents))
    zeros, end = hashlib.sha256(bytes(64)).digest(), hashlib.sha256(bytes(8)).digest()
    empty, full = hashlib.sha256(b"").digest(), hashlib.sha256(b"x" * 64).digest()
    pieces = [(b"a", zeros)] * 3 + [(b"a", end), (b"b", empty), (b"c", full)]
    whole = b"4 text" + b"".join(name + b"\n" + digest for name, digest in pieces)
    assert found == {hashlib.sha256(whole).hexdigest()}


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    read, file = [], tmp_path / "file"
    file.write_bytes(b"one")

    def compute(path):
        read.append(path)
        return path.read_text()

    for _ in range(2):
        assert checksums.once(file, "text", compute) == "one"
    assert len(read) == 2  # within one tick of the clock it could have been written again
    monkeypatch.setattr(checksums, "_AT_REST", -(10**12))
    for _ in range(3):
        assert checksums.once(file, "text", compute) == "one"
    assert len(read) == 3
    assert checksums.once(file, "other", compute) == "one" and len(read) == 4
    file.write_bytes(b"three")
    assert checksums.once(file, "text", compute) == "three"
    assert checksums.once(file, "other", compute) == "three"


@pytest.mark.parametrize("where", ["header", "first", "last", "page"])
def test_every_change_of_a_file_with_a_header_is_found(tmp_path, small_parts, where):
    file, rng = tmp_path / "x.safetensors", torch.Generator().manual_seed(0)
    own = {"w": torch.randn(40, 50, generator=rng), "b": torch.arange(1, 9, dtype=torch.bfloat16)}
    tensors.write_tensors(own, file, {"about": "what it is"})
    back = tensors.read_tensors(file)
    assert all(torch.equal(back[name], own[name]) for name in own)
    content = bytearray(file.read_bytes())
    start = len(content) - 40 * 50 * 4 - 16
    if where == "page":
        content[start + 100 : start + 4196] = bytes(4096)
    elif where == "header":
        content[content.index(b"what it is")] ^= 1
    else:
        content[start if where == "first" else -1] ^= 4
    file.write_bytes(content)
    refuses("checksum does not match", tensors.read_tensors, file)


def test_files_without_a_header_and_of_an_older_version(tmp_path):
    tensors.write_tensors({"w": torch.ones(2)}, tmp_path / "x.safetensors")
    assert tensors.read_tensors(tmp_path / "x.safetensors")["w"].tolist() == [1, 1]
    file, own, text = tmp_path / "c.safetensors", {"w": torch.arange(9.0)}, '{"step":3}'
    header = {"meta": text, "sha256": tensors.digest(own, text)}
    safetensors.torch.save_file(own, file, header)
    back, meta = tensors.load_checkpoint(file)
    assert meta == {"step": 3} and torch.equal(back["w"], own["w"])
    safetensors.torch.save_file({"w": own["w"] + 1}, file, header)
    assert tensors.load_checkpoint(file) is None
    file, own = tmp_path / "x.safetensors", {"w": torch.ones(3)}
    tensors.write_tensors(own, file, {})
    there = files.Files(file, own)
    assert there["w"].tolist() == [1, 1, 1]
    tensors.write_tensors({"w": torch.zeros(3)}, file)
    refuses("changed while it was in use", lambda: there["w"])
