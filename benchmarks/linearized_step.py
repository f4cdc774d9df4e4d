"""Time, memory and matrix products of a linearized step, as multiples of a standard one.

    python benchmarks/linearized_step.py [--model vitb32 --batch 8] [--threads 1] [--out FILE]

`tasklab.analyses.cost` says what is measured, and how: training with gradient clipping and AdamW,
and inference. The weights are random: they do not matter here.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from tasklab import machine
from tasklab.analyses import cost
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.records.table import provenance

CLASSES = 16


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mini")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variants", nargs="+", default=["ours", "listing"])
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "cpu"),
        help="whose times to print; cpu: time of the process, for a busy machine and one thread",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    machine.keep_freed_memory()

    encoder = loading.load(args.model, init="random", device=args.device).encoder
    generator = torch.Generator().manual_seed(0)
    shape = (max(args.batch), 3, encoder.image_size, encoder.image_size)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, shape[:1], generator=generator)
    with torch.no_grad():
        width = encoder(encoder.params, encoder.preprocess(images[:1].to(args.device))).shape[1]
    head = Head(50 * F.normalize(torch.randn(CLASSES, width, generator=generator), dim=-1))
    began = time.perf_counter()
    table = cost.measure(
        encoder,
        head,
        images,
        labels,
        variants=["standard", *args.variants],
        batch_sizes=args.batch,
        rounds=args.rounds,
        precision=args.precision,
    )

    index = ["what", "batch_size", "variant"]
    values = table.pivot(index=index, columns="metric", values="value")
    quartiles = table[table["metric"] == ("cpu_ratio" if args.clock == "cpu" else "time_ratio")]
    quartiles = quartiles.set_index(index)[["value", "low", "high"]].reindex(values.index)
    shown = quartiles.set_axis(["time", "from", "to"], axis=1)
    shown["ms"] = 1e3 * values["cpu_seconds" if args.clock == "cpu" else "seconds"]
    for metric in ("peak_memory", "step_memory", "flops"):
        standard = values[metric].xs("standard", level="variant")
        shown[metric] = values[metric].div(standard)
    shown["MiB"] = values["peak_memory"]
    print(
        f"{args.model}, {args.precision}, {args.threads} thread(s); multiples of standard, ms, MiB"
    )
    print(shown.to_string(float_format="%.3f"))
    gpu = torch.cuda.get_device_name(args.device) if args.device != "cpu" else None
    names = ("model", "batch", "rounds", "device", "precision", "threads", "clock")
    settings = {name: getattr(args, name) for name in names}
    notes = provenance(settings, gpu=gpu, seconds=round(time.perf_counter() - began, 1))
    rows = table.drop(columns=["threads", "device", "n"]).to_dict("records")
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
