"""Small pictures in files, and what decoding makes of them."""

import numpy as np
from PIL import Image

from tasklab.tasks.images import formats, pixels
from tasklab.tasks.images.decoding import Transform
from tasklab.tasks.suites import paper_data_sets

SIDE = 16
CENTRE = Transform("centre", SIDE)


def images(folder, count, scale=1):
    random, files = np.random.default_rng(0), []
    folder.mkdir()
    for i in range(count):
        shape = (scale * (20 + i % 7), scale * (18 + i % 5), 3)
        file = folder / f"{i:03d}.png"
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(file)
        files.append(file)
    return formats.image_files(files, [i % 3 for i in range(count)], ["a", "b", "c"])


def expected(split, rows, transform=CENTRE):
    kept = []
    for row in rows:
        with Image.open(split.files[row]) as image:
            kept.append(transform(image.convert("RGB")))
    return np.stack(kept)


def rows_of(split, count=30):
    return np.random.default_rng(1).permutation(len(split))[:count]


def keep(cache, name, **sides):
    """Decode an image for each split and size of a data set of the papers into `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    for split, side in sides.items():
        made = images(cache / f"{name}-{split}-{side}", 1)
        folder = cache / "pictures" / name / f"{split}-centre{side}-0"
        note = {"split": split, "source": name, "classes": paper_data_sets()[name]["classes"]}
        pixels.decode(folder, made, np.array([0]), Transform("centre", side), note=note)
