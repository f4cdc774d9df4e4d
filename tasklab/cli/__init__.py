"""The commands of `python -m tasklab`; their imports happen when they run."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: its function, purpose, and an example of its arguments."""

    function: str
    summary: str
    example: str


_EDIT = {
    "compare": Command(
        "compare:compare",
        "Compare merges of your checkpoints on their tasks' images, and write a report.",
        "Cars=cars.pt Pets=pets.pt --model vitb32 --data Cars=cars/ --data Pets=pets/",
    ),
    "merge": Command(
        "merging:merge",
        "Merge task vectors into one, by one of many methods.",
        "cars.safetensors svhn.safetensors --model vitb32 --method ties --out merged.safetensors",
    ),
    "inspect": Command(
        "inspecting:inspect",
        "Show what fine-tuning changed in networks of any kind: norms, ranks, angles, rounding.",
        "cars/ pets/ adapter/ --base base/",
    ),
    "evaluate": Command(
        "evaluating:evaluate",
        "Add and subtract task vectors, and show what that gains on every task.",
        "mini --add merged.safetensors --subtract Textures@nonlinear:0.5",
    ),
    "judge": Command(
        "judging:judge",
        "Judge a merge rule of your own on the recorded worlds, beside the recorded merges.",
        "my_rule.py --csv rows.csv",
    ),
    "train": Command(
        "grid:grid",
        "Fine-tune models x methods x tasks x seeds, here, on SLURM or on Ray.",
        "--model mini --method nonlinear --method linearized --seeds 3 --dry-run",
    ),
    "import": Command(
        "checkpoints:import_",
        "Keep the task vector of a published checkpoint.",
        "finetuned.pt --model vitb32 --task Cars",
    ),
    "export": Command(
        "checkpoints:export",
        "Write fine-tuning runs of the store as safetensors with model cards.",
        "--task Textures --method nonlinear --out vectors",
    ),
}
_BOOK = {
    "report": Command(
        "chapters:report", "Execute the chapters and build the site.", "--preset quick --seeds 0,1"
    ),
    "record": Command(
        "chapters:record",
        "Compute a chapter's recorded results (preset full) and write them to a file.",
        "tangent --part maps --jobs 2",
    ),
    "paper": Command(
        "paper:paper",
        "Reproduce the papers' numbers of a model: weights, images, vectors, chapters, report.",
        "vitb32 --dry-run",
    ),
}
_MACHINE = {
    "list": Command("names:list_", "Show the names that parameters can take.", "models"),
    "doctor": Command(
        "doctoring:doctor",
        "Show what this machine has, and which chapters can run with which models.",
        "--data-root ~/data",
    ),
    "fetch": Command(
        "names:fetch", "Load models' weights, or say what is missing.", "vitb32 vitb16"
    ),
    "decode": Command(
        "decode:decode",
        "Check and decode a suite's images, or say what is missing.",
        "paper --model vitb32 --fetch",
    ),
    "store": Command(
        "store:store", "Check, clean and measure the folder of results.", "gc --dry-run"
    ),
}
GROUPS = {"Edit models": _EDIT, "The book": _BOOK, "This machine": _MACHINE}
COMMANDS = {name: one for group in GROUPS.values() for name, one in group.items()}
FORMER = {"grid": "train", "study": "record"}  # names of before
