"""The command line: `python -m tasklab COMMAND`, where `--help` lists the commands.

Anything that a user can put right ends in one line on the error stream and exit status 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tasklab.cli import checkpoints, decode, doctor, grid, store
from tasklab.errors import TasklabError, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        status = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except TasklabError as error:
        print(f"tasklab: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of a file that nothing else looked after
        _drop_output()
        name = error.filename  # a path, or the number of an open file
        named = f"{os.fsdecode(name) if isinstance(name, bytes) else name}: " if name else ""
        reason = error.strerror or next(iter(str(error).splitlines()), "") or type(error).__name__
        print(f"tasklab: {named}{reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "tasklab: stopped; what is finished is kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    return status or 0


def _drop_output() -> None:
    """Let what cannot be written to the standard output not fail a second time at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tasklab", description="Editing pre-trained models by arithmetic on their weights."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="execute the chapters and build the site")
    report.set_defaults(run=_report)
    _add_parameters(report, preset="quick")

    study = commands.add_parser(
        "study", help="compute a chapter's recorded results (preset full) and write them to a file"
    )
    study.set_defaults(run=_study)
    study.add_argument("chapter", help="the chapter's name, e.g. tangent")
    study.add_argument("--part", default="editing", help="which of its files: editing, maps, ...")
    study.add_argument("--out", help="where to write (default: the package's data)")
    study.add_argument("--jobs", type=int, default=1, help="processes that share the cores")
    _add_parameters(study, preset="full")

    fetch = commands.add_parser("fetch", help="load a model's weights, or say what is missing")
    fetch.set_defaults(run=_fetch)
    fetch.add_argument("model", nargs="+", help="short name, see `tasklab list models`")
    fetch.add_argument("--weights", type=Path, help="a checkpoint file to use")

    decode.add_commands(commands)
    doctor.add_commands(commands)
    store.add_commands(commands)
    grid.add_commands(commands)
    checkpoints.add_commands(commands, _add_parameters, _parameters)

    listing = commands.add_parser("list", help="show the names that parameters can take")
    listing.set_defaults(run=_list)
    listing.add_argument("what", nargs="?", help="models, methods, suites or tasks (default: all)")
    return parser


def _add_parameters(parser: argparse.ArgumentParser, *, preset: str) -> None:
    """Add the notebook parameters; what is not given stays at the chapters' own default."""
    add = parser.add_argument_group("parameters", "as in a chapter's first code cell").add_argument
    add("--preset", default=preset, help=f"quick or full (default: {preset})")
    add("--model", help="default: mini")
    add("--suite", help="default: what fits the model")
    add("--init", help="pretrained or random")
    add("--seeds", help="how many, or a list like 0,1,2")
    add("--steps", help="fine-tuning steps")
    add("--device", help="cpu, cuda, cuda:1; default: CUDA if there")
    add("--data-root", help="where data sets are")
    add("--store-root", help="where results are kept")


def _parameters(args: argparse.Namespace) -> dict[str, object]:
    """Return the parameters that were given, validated before anything is started."""
    from tasklab.experiments.parameters import Parameters

    names = (
        "preset",
        "model",
        "suite",
        "init",
        "seeds",
        "steps",
        "device",
        "data_root",
        "store_root",
    )
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "," in given.get("seeds", ""):
        try:
            given["seeds"] = tuple(int(seed) for seed in given["seeds"].split(","))
        except ValueError:
            raise TasklabError(f"--seeds {given['seeds']}: whole numbers, e.g. 0,1,2.") from None
    Parameters(**given)
    return given


def _report(args: argparse.Namespace) -> None:
    from tasklab.book import report

    given = _parameters(args)
    report(given.pop("preset"), parameters=given)


def _study(args: argparse.Namespace) -> None:
    from tasklab.experiments.parameters import Parameters

    out = None if args.out is None else checkpoints.path_of("--out", args.out)
    parameters = Parameters(**_parameters(args))
    from tasklab.study.recording import study

    study(args.chapter, parameters, part=args.part, out=out, jobs=args.jobs)


def _fetch(args: argparse.Namespace) -> None:
    from tasklab.models import loading

    for name in args.model:
        clip = loading.load(name, weights=args.weights)
        encoder = clip.encoder
        size = sum(value.numel() for value in encoder.params.values()) / 1e6
        print(
            f"{name}: ready; image encoder {size:.1f} M parameters, weights {encoder.weights_hash}"
        )


def _list(args: argparse.Namespace) -> None:
    tables = {"models": _models, "methods": _methods, "suites": _suites, "tasks": _tasks}
    if args.what is not None and args.what not in tables:
        raise unknown("list", args.what, tables)
    for what in [args.what] if args.what else tables:
        rows = list(tables[what]())
        width = max(len(name) for name, _ in rows)
        print(f"{what}:")
        for name, text in rows:
            print(f"  {name:<{width}}  {text}".rstrip())


def _models() -> list[tuple[str, str]]:
    from tasklab.models.loading import REGISTRY

    return [
        (name, f"{spec.arch} {spec.pretrained} ({spec.source})") for name, spec in REGISTRY.items()
    ]


def _methods() -> list[tuple[str, str]]:
    from tasklab.tuning.methods import EDITS

    text = {
        "nonlinear": "all weights of the image encoder",
        "linearized": "the same weights, in the encoder's tangent model",
        "attention": "q, k, v and output weights of attention",
        "attention_bias": "attention's weights and biases",
        "attention_mlp": "weights of attention and MLP",
        "attention_mlp_bias": "weights and biases of attention and MLP",
        "posthoc": "not trained: a nonlinear task vector in the tangent model",
        "attention_posthoc": "not trained: an attention task vector in the tangent model",
    }
    return [(name, text.get(name, "")) for name in EDITS]


def _suites() -> list[tuple[str, str]]:
    from tasklab.tasks.suites import SUITES, suite

    return [(name, f"{len(suite(name).tasks)} tasks and a control task") for name in SUITES]


def _tasks() -> list[tuple[str, str]]:
    from tasklab.tasks.suites import SUITES, suite

    found = []
    for name in SUITES:
        for task in (*suite(name).tasks, suite(name).control):
            role = "control, stands in for" if task.control else "stands in for"
            text = f"{name}: {len(task.classes)} classes, {role} {task.stand_in_for}"
            found.append((task.name, text))
    return found


if __name__ == "__main__":
    sys.exit(main())
