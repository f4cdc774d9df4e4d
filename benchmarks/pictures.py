"""Decoding and serving of images: rates, the time to a first step, and the error of the crops.

    python benchmarks/pictures.py [--images 600 --side 224 --batch 128 --device cpu] [--out FILE]

Images are JPEGs of 500 x 375, cut from two photographs that come with scikit-learn. Measured are:

- decode: images per second of a core's time, once for training and once for evaluation;
- first batch: from a decoded data set, not yet opened, to the first cropped batch on the device;
- loader: cropped training images a second, and how many of them a training step of the model takes;
- crops: mean difference in grey levels to Pillow's transform for each image.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resized_crop

from tasklab import augment, finetune, models, own
from tasklab.config import recipe
from tasklab.pictures import Pictures
from tasklab.records import provenance
from tasklab.tasks import Suite


def main() -> None:
    """Measure, print, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", help="a full-size model whose training step to compare with")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    for name, value in found.items():
        print(f"{name:45} {value:.4g}")
    if args.out:
        settings = {k: v for k, v in vars(args).items() if k != "out"}
        args.out.write_text(json.dumps({**provenance(settings), "measured": found}, indent=1))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return what was measured, by name."""
    write(folder / "photos", args.images)
    suite = Suite.of(own.from_folder(folder / "photos"))
    options = {"suite": suite, "cache": folder, "progress": False, "jobs": 1}
    pictures = Pictures(side=args.side, **options)
    found = {}
    began = time.process_time()
    for _, split, arrays in pictures.decode():
        rate = len(arrays.y) / (time.process_time() - began)
        found[f"decode for {split}: images/s of a core"] = rate
        began = time.process_time()

    def order(step: int, count: int) -> torch.Tensor:
        return finetune.batch(
            recipe("vitb32", "x", "nonlinear", batch_size=args.batch), step, count
        )

    began = time.perf_counter()
    fresh = Pictures(side=args.side, **options)
    next(fresh.batches("photos", order, range(1), seed=0, device=args.device))
    found["first batch from decoded images: s"] = time.perf_counter() - began
    steps, began = 8, 0.0
    for number, _ in enumerate(
        pictures.batches("photos", order, range(steps + 1), seed=0, device=args.device)
    ):
        if args.device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter() if number == 0 else began
    found["loader: images/s"] = steps * args.batch / (time.perf_counter() - began)
    if args.model:
        found[f"training step of {args.model}: images/s"] = consumed(args)
    return found | differences(args.side)


def consumed(args: argparse.Namespace, few: int = 16) -> float:
    """Return how many images a second a non-linear training step takes, without its update."""
    encoder = models.load(args.model, init="random", device=args.device).encoder
    count = args.batch if args.device != "cpu" else few
    x = torch.randn(count, 3, encoder.image_size, encoder.image_size, device=args.device)
    leaves = {k: v.detach().requires_grad_() for k, v in encoder.params.items()}
    for _ in range(2):
        began = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device != "cpu"):
            loss = encoder(leaves, x).float().square().mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        float(grads[0].sum())
    return count / (time.perf_counter() - began)


def differences(side: int) -> dict[str, float]:
    """Return the mean difference of crops to Pillow's, for each photograph, in grey levels."""
    found = {}
    for number, photo in enumerate(load_sample_images().images):
        image = Image.fromarray(photo).crop((0, 0, 480, 427))
        kept = np.asarray(image.resize([augment.kept_side(side)] * 2, Image.Resampling.BICUBIC))
        squares = torch.from_numpy(kept.copy()).permute(2, 0, 1).expand(16, -1, -1, -1)
        sizes = torch.tensor([image.size]).expand(16, 2)
        edges = augment.boxes(sizes, augment.generator(0, 0))
        ours = augment.crop(squares, edges, side).float()
        theirs = []
        for left, top, right, bottom in (edges * sizes.repeat(1, 2)).round().int().tolist():
            box = (top, left, bottom - top, right - left)
            cut = resized_crop(image, *box, [side, side], InterpolationMode.BICUBIC)
            theirs.append(torch.from_numpy(np.array(cut)).permute(2, 0, 1).float())
        error = (ours - torch.stack(theirs)).abs().mean().item()
        found[f"crops, photograph {number}: grey levels"] = error
    return found


def write(folder: Path, count: int) -> None:
    """Write JPEGs of 500 x 375, cut out of two photographs, as two classes."""
    random = np.random.default_rng(0)
    for i in range(count):
        photo = Image.fromarray(load_sample_images().images[i % 2])
        left, top = random.integers(0, 140), random.integers(0, 52)
        stream = io.BytesIO()
        photo.crop((left, top, left + 500, top + 375)).save(stream, "JPEG", quality=90)
        file = folder / ("china", "flower")[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stream.getvalue())


if __name__ == "__main__":
    main()
