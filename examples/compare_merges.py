"""Compare merges of your checkpoints.

Here two fine-tuned models are written as checkpoints of torch; yours are files of open_clip,
transformers or timm, given as `TASK=FILE`, with `--data TASK=FOLDER` for your images.
"""

from pathlib import Path

import torch

from tasklab import Lab
from tasklab.__main__ import main as tasklab


def main(model="mini_xs", folder=".", **settings):
    """Return the path of the report; `settings` are parameters of the lab."""
    lab, folder = Lab(model, tasks=["Signs", "Textures"], **settings), Path(folder)
    report, best = str(folder / "report.html"), str(folder / "best.safetensors")
    words = ["compare", "--model", model, "--out", report, "--merged", best]
    for task in lab.tasks:
        theta = lab.vector(task).apply(lab.clip.encoder.params)
        torch.save(theta, folder / f"{task}.pt")
        words.append(f"{task}={folder / task}.pt")

    merges = ["--methods", "arithmetic,ties,tsv_m,regmean"]  # leave it out for all
    assert tasklab([*words, *merges]) == 0
    print(lab.evaluate(lab.vector(best)))  # the vector that it wrote
    return Path(report)


if __name__ == "__main__":
    main()
