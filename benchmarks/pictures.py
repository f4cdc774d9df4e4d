"""Decoding and serving of images: rates, the time to a first step, and the error of the crops.

    python benchmarks/pictures.py [--models mini vitb32 --images 600 --device cpu] [--out FILE]

Images are JPEGs of 500 x 375, cut from two photographs that come with scikit-learn. Measured are,
for each model:

- decode: images per second of a core's time, for training and for evaluation;
- before the first step: seconds of a new process, with the decoded images out of the system's
  cache, up to its first training step, and of that step with its batch;
- loader: training images a second, cropped on the device, how many of them training steps take,
  and the ratio; for a shipped model those of its drawn suite as well, which are not cropped;
- crops: mean difference in grey levels to Pillow's transform for each image.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resized_crop

from tasklab import Lab, Parameters
from tasklab.evidence.records.table import provenance
from tasklab.models import loading, zoo
from tasklab.models.encoder import Encoder
from tasklab.tasks import drawn as datasets
from tasklab.tasks import own
from tasklab.tasks.images import augment
from tasklab.tasks.images.loader import DecodedImages
from tasklab.tasks.suites import Suite, suite
from tasklab.tuning import finetune
from tasklab.tuning.finetune import batch
from tasklab.tuning.recipe import FineTune, recipe


def main() -> None:
    """Measure, print, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--models", nargs="+", default=["mini", "vitb32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first-step", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_step:
        first_step(args.first_step, args.models[0], args.device)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "photos", args.images)
        rows = [measure(args, Path(folder), model) for model in args.models]
    table = pd.DataFrame(rows)
    print(table.set_index("model").T.map(short).to_string())
    crops = differences(224)
    print("crops, grey levels of each photograph:", *(f"{x:.2f}" for x in crops))
    if args.out:
        gpu = torch.cuda.get_device_name() if args.device != "cpu" else None
        settings = {"images": args.images, "device": args.device, "crops": crops, "rows": rows}
        note = {**settings, "threads": torch.get_num_threads()}
        args.out.write_text(json.dumps(provenance(note, gpu=gpu), indent=1) + "\n")


def measure(args: argparse.Namespace, folder: Path, model: str) -> dict[str, float | str]:
    """Return what was measured of one model, by name."""
    encoder = loading.load(model, init="random", device=args.device).encoder
    config = recipe(model, "photos", "nonlinear")
    os.environ["TASKLAB_DATA"] = str(folder / model)
    tasks = Suite.from_tasks(own.from_folder(folder / "photos"))
    pictures = DecodedImages(suite=tasks, side=encoder.image_size, jobs=1, progress=False)
    found: dict[str, float | str] = {"model": model, "batch": config.batch_size}
    began = time.process_time()
    for _, split, arrays in pictures.decode():
        rate = len(arrays.y) / (time.process_time() - began)
        found[f"decode for {split}: images/s of a core"] = rate
        began = time.process_time()
    found |= fresh_process(folder, model, args.device)
    found["loader: images/s"] = served(pictures, "photos", config, args.device)
    if zoo.shipped(model):
        drawn = datasets.images_of(suite("mini"))
        found["loader, drawn images: images/s"] = served(drawn, "Scenes", config, args.device)
    found["training steps: images/s"] = taken = consumed(encoder, config, args.device)
    found["loader / training steps"] = found["loader: images/s"] / taken
    return found


def short(value: float) -> str:
    """Return a number as it is read in a table."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def served(
    data: datasets.SuiteImages, task: str, config: FineTune, device: str, steps: int = 8
) -> float:
    """Return how many training images a second come when nobody else computes."""
    order, began = functools.partial(batch, config), 0.0
    batches = data.batches(task, order, range(steps + 1), seed=0, device=device)
    for number, _ in enumerate(batches):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter() if number == 0 else began
    return steps * config.batch_size / (time.perf_counter() - began)


def consumed(encoder: Encoder, config: FineTune, device: str, few: int = 16) -> float:
    """Return how many images a second a non-linear training step takes, without its update."""
    shipped = zoo.shipped(config.model)
    count = config.batch_size if shipped or device != "cpu" else few
    x = torch.randn(count, 3, encoder.image_size, encoder.image_size, device=device)
    leaves = {k: v.detach().requires_grad_() for k, v in encoder.params.items()}
    fast, seconds = device != "cpu" and not shipped, []
    for _ in range(6):
        began = time.perf_counter()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=fast):
            loss = encoder(leaves, x).float().square().mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        float(grads[0].sum())
        seconds.append(time.perf_counter() - began)
    return count / statistics.median(seconds[2:])


def fresh_process(folder: Path, model: str, device: str) -> dict[str, float]:
    """Return the seconds of a new process up to its first step, and of that step."""
    for file in (folder / model).rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    words = ["--first-step", str(folder / "photos"), "--models", model, "--device", device]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE)
    seconds, step = time.perf_counter() - began, float(done.stdout.split()[-1])
    return {"before the first step: s": seconds - step, "the first step: s": step}


def first_step(folder: Path, model: str, device: str) -> None:
    """Train one step on decoded images, and print its seconds."""
    with tempfile.TemporaryDirectory() as store:
        parameters = Parameters(
            model=model, init="random", head="trained", steps=1, device=device, store_root=store
        )
        lab = Lab(parameters, own=[own.from_folder(folder)], progress=False)
        run = dataclasses.replace(lab.run("photos", "nonlinear", 0), batch_size=128)  # the usual
        done = finetune.finetune(run, lab.clip, lab.store, tasks=lab.suite, progress=False)
    print(done.record["seconds"])


def differences(side: int) -> list[float]:
    """Return the mean difference of crops to Pillow's, for each photograph, in grey levels."""
    found = []
    for photo in load_sample_images().images:
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
        found.append((ours - torch.stack(theirs)).abs().mean().item())
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
