"""Data sets in the layouts of their own downloads; the grey level of an image tells its class."""

import io
import itertools
import json
import struct

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet as pq
from scipy.io import savemat

_NUMBERS = itertools.count()
BYTES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(label, kind="PNG", size=(9, 7)):
    """Return an encoded image whose grey level tells its label."""
    stream = io.BytesIO()
    Image.new("RGB", size, (20 * label, 20 * label, 20 * label)).save(stream, kind)
    return stream.getvalue()


def write(file, label, kind="PNG"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(picture(label, kind))
    return file


def images(*folders, count=2):
    """Write images, no two of which are alike, into folders."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            number = next(_NUMBERS)
            colour = number % 256, number // 256 % 256, 0
            Image.new("RGB", (5, 4), colour).save(folder / f"{i}.png")


def parquet(file, cells, labels, names=None, *, image="image", label="label", rows=8):
    """Write a parquet file as the library `datasets` does, of encoded images or other cells."""
    kind = BYTES if not cells or isinstance(cells[0], dict) else None
    table = pa.table({image: pa.array(cells, kind), label: pa.array(labels)})
    if names is not None:
        info = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=rows)
    return file


def listed(file, lines):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def some(count, classes):
    return [i % classes for i in range(count)]


def mnist(root, sizes, classes, images=None, kind="MNIST", stems=("train", "t10k")):
    """Write files of MNIST's form; `images`: how many there are, if not as many as labels."""
    for split, stem in zip(("train", "test"), stems, strict=True):
        labels, many = some(sizes[split], classes), images or sizes[split]
        pixels = np.repeat(20 * np.array(labels[:many], np.uint8), 28 * 28).tobytes()
        parts = {
            "images-idx3": struct.pack(">4B3i", 0, 0, 8, 3, many, 28, 28) + pixels,
            "labels-idx1": struct.pack(">4Bi", 0, 0, 8, 1, len(labels)) + bytes(labels),
        }
        for name, data in parts.items():
            file = root / kind / "raw" / f"{stem}-{name}-ubyte"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def svhn(root, sizes, classes, images=None, x="X"):
    """Write SVHN's files, where ten is zero."""
    root.mkdir(parents=True, exist_ok=True)
    for split, count in sizes.items():
        labels, many = np.array(some(count, classes)), images or count
        greys = (20 * labels[:many]).astype(np.uint8)
        pixels = np.broadcast_to(greys, (32, 32, 3, many))
        y = np.where(labels == 0, 10, labels)[:, None]
        savemat(root / f"{split}_32x32.mat", {x: pixels, "y": y})


def cars(root, sizes, names, grey=int):
    root = root / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit/cars_meta.mat", {"class_names": np.array(names, dtype=object)})
    files = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    for split, count in sizes.items():
        rows = np.zeros(count, dtype=[("fname", object), ("class", object)])
        for i, label in enumerate(some(count, len(names))):
            rows[i] = (f"{i}.jpg", label + 1)
            write(root / f"cars_{split}" / f"{i}.jpg", grey(label))
        savemat(root / files[split], {"annotations": rows})


def dtd(root, sizes, names):
    for split, count in sizes.items():
        labels = some(count, len(names))
        lines = [f"{names[c]}/{split}{i}.jpg" for i, c in enumerate(labels)]
        for line, label in zip(lines, labels, strict=True):
            write(root / "dtd/dtd/images" / line, label)
        listed(root / "dtd/dtd/labels" / f"{split}1.txt", lines)


def gtsrb(root, sizes, classes):
    root = root / "gtsrb"
    for i, label in enumerate(some(sizes["train"], classes)):
        write(root / "GTSRB/Training" / f"{label:05d}" / f"{i}.ppm", label, "PPM")
    labels = some(sizes["test"], classes)
    for i, label in enumerate(labels):
        write(root / "GTSRB/Final_Test/Images" / f"{i}.ppm", label, "PPM")
    lines = ["Filename;Width;ClassId", *(f"{i}.ppm;9;{label}" for i, label in enumerate(labels))]
    listed(root / "GT-final_test.csv", lines)


def resisc(root, sizes, names):
    for split, count in sizes.items():
        files = []
        for i, label in enumerate(some(count, len(names))):
            files.append(f"{names[label]}_{split}{i}.jpg")
            write(root / "NWPU-RESISC45" / names[label] / files[-1], label)
        listed(root / f"resisc45-{split}.txt", files)


def sun(root, sizes, names, grey=int):
    for split, word in (("train", "Training"), ("test", "Testing")):
        labels = some(sizes[split], len(names))
        lines = [f"/a/{names[c]}/{word}{i}.jpg" for i, c in enumerate(labels)]
        for line, label in zip(lines, labels, strict=True):
            write(root / line[1:], grey(label))
        listed(root / f"{word}_01.txt", lines)
    listed(root / "ClassName.txt", [f"/a/{name}" for name in names])
