"""Task vectors and tangent checkpoints as folders that others can use.

    FOLDER/task_vector.safetensors  tau, with model, task, method, theta_0's hash and configuration
           head.safetensors         the head that was trained with the encoder, if one was
           theta_0.safetensors      the pre-trained parameters, if they are asked for
           config.json              the run: configuration, record, accuracies; checksums of the
                                    files, with which the vector is compared when it is loaded
           README.md                the model card

The vector is the run's, bit for bit; the folder is written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasklab import __version__
from tasklab.errors import TasklabError
from tasklab.exchange.naming import inert
from tasklab.exchange.sources import HEAD_FILE, VECTOR_FILE
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import spec
from tasklab.storage import atomic, vectors
from tasklab.storage.checksums import file_sha256
from tasklab.storage.store import Artifact, Store
from tasklab.storage.templates import filled
from tasklab.storage.tensors import canonical, explained, write_tensors
from tasklab.tuning.methods import LINEAR, POSTHOC
from tasklab.tuning.recipe import REHEARSAL_STEPS

BASE_FILE, CONFIG_FILE, CARD_FILE = "theta_0.safetensors", "config.json", "README.md"
_TRAINING = {  # rows of the card's table: field of the configuration, in words
    "suite": "suite of tasks", "data": "training data", "init": "encoder at the start",
    "head": "head", "steps": "steps", "batch_size": "batch size", "lr": "highest learning rate",
    "warmup": "warm-up steps", "weight_decay": "weight decay", "clip": "largest gradient norm",
    "precision": "precision", "seed": "seed",
}  # fmt: skip


def write_run(
    run: Artifact,
    encoder: Encoder,
    folder: Path,
    *,
    accuracies: Sequence[Mapping[str, Any]] = (),
    base: bool = False,
) -> Path:
    """Write a fine-tuning run to a folder of its own, and return the folder.

    Where the folder holds the same run, its files are replaced one by one. The tensors are the same
    bits, so that it is whole at every moment; files of other names stay, and so does theta_0. The
    card has the `accuracies` of `accuracies_of`.

    Args:
        run: A fine-tuning run of the store.
        encoder: The encoder that it starts from.
        folder: Where its folder is made.
        accuracies: Rows of `accuracies_of`, for the card.
        base: Whether to write theta_0 as well.
    """
    if run.config["weights"] != encoder.weights_hash:
        raise TasklabError(
            f"the run starts from the weights {run.config['weights'][:12]}, and {encoder.name} has "
            f"{encoder.weights_hash[:12]}."
        )
    names = ("model", "init", "task", "method", "seed", "weights")
    about = {name: run.config[name] for name in names} | {"run": run.key, "sha256": run.sha256}
    content = {**about, "config": run.config, "record": run.record}
    content |= {"accuracies": list(accuracies), "tasklab": __version__}
    with explained(folder, "write to", "--out"):
        _free(folder, content)
        base = base or (folder / BASE_FILE).is_file()
    tensors = run.tensors()
    head = {n: tensors.pop(n) for n in list(tensors) if n not in encoder.params}
    # The configuration comes first: by it the run's folder is known if the rest is cut off.
    order = (CONFIG_FILE, VECTOR_FILE, HEAD_FILE, BASE_FILE, CARD_FILE)
    with (
        explained(folder, "write to", "--out"),
        atomic.folder(folder, order=order) as draft,
    ):
        vectors.export(draft / VECTOR_FILE, tensors, about)
        if head:
            write_tensors(head, draft / HEAD_FILE)
        if base:
            write_tensors(encoder.params, draft / BASE_FILE, {"format": "pt"})
        # Of the tensors alone: whoever publishes the folder may add to the card.
        content["files"] = {file.name: file_sha256(file) for file in sorted(draft.iterdir())}
        (draft / CARD_FILE).write_text(card(run, accuracies, head=bool(head), base=base), "utf-8")
        (draft / CONFIG_FILE).write_text(canonical(content, indent=1), "utf-8")
    return folder


def accuracies_of(store: Store, runs: Iterable[Artifact]) -> dict[str, list[dict[str, Any]]]:
    """Return the test accuracies on its own task that the store has of each run, by its key.

    The chapters' single-task tables have the same rows: the run itself, a non-linear run in the
    linearized model (post-hoc), and the pre-trained model. A row has method, value (in %), n
    (images) and split.
    """
    runs = list(runs)
    rows: dict[str, list[dict[str, Any]]] = {run.key: [] for run in runs}
    configs = [one for one in store.configs("records") if one.get("experiment") == "single"]
    for config in configs:
        concerned = [run for run in runs if _is_of(config, run, configs)]
        artifact = store.find("records", config) if concerned else None
        for run in concerned:
            for row in artifact.record["rows"] if artifact is not None else ():
                kept = {part: row[part] for part in ("method", "value", "n", "split")}
                if row["task"] == run.config["task"] and kept not in rows[run.key]:
                    rows[run.key].append(kept)
    return rows


def _is_of(config: Mapping[str, Any], run: Artifact, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether records are of a run, or of the pre-trained model with the same head and images."""
    own = run.config
    task = own["task"]
    if config["method"] == "pretrained":
        told = ("weights", "beside", "suite")
        same = all(config.get(name) == own.get(name) for name in told)
        if own["suite"] == "own":  # the name stands for any folder: the run's records tell which
            mine = [one["data"][task] for one in configs if one["runs"].get(task) == own]
            same = same and config["data"].get(task) in mine
        return same and "head" not in own  # a head of its own has no accuracy before training
    return config["runs"].get(task) == own


def _free(folder: Path, content: Mapping[str, Any]) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        there = json.loads((folder / CONFIG_FILE).read_text("utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        there = None
    if there != content["sha256"]:
        raise TasklabError(f"{folder} holds something else: choose another folder with --out.")


def card(
    run: Artifact, accuracies: Sequence[Mapping[str, Any]], *, head: bool, base: bool
) -> str:  # fmt: skip
    """Return the model card: purpose, usage, training and accuracy.

    Args:
        run: A fine-tuning run of the store.
        accuracies: Rows of `accuracies_of`.
        head: Whether a head is exported along.
        base: Whether theta_0 is exported along.
    """
    config, linear = run.config, run.config["method"] in LINEAR
    entry = spec(config["model"])
    source = entry.source if entry.shipped else f"weights {entry.pretrained} ({entry.source})"
    usual = config["init"] == "pretrained"
    return filled(
        "exchange/card.md",
        **{"linear": linear, "base": base, "head": head, "texts": entry.kind == "bert"},
        **{name: inert(config[name]) for name in ("model", "task", "method")},
        kind="Tangent task vector" if linear else "Task vector",
        plain_model=config["model"],
        arch=entry.arch,
        source=f"{source}{'' if usual else ', with a random encoder'}",
        start="" if usual else f', init="{config["init"]}"',
        weights=config["weights"],
        training=_training(run),
        accuracies=_table(accuracies),
    )


def _training(run: Artifact) -> str:
    config, record = dict(run.config), run.record
    if "lr" in record:  # what was taken where the configuration asks for a search
        config["lr"] = record["lr"]
    rows = [("method", config["method"])]
    for name, words in _TRAINING.items():
        rows += [(words, config[name])] if name in config else []
        if name == "steps" and config.get(name, REHEARSAL_STEPS) < REHEARSAL_STEPS:
            note = f"yes: with fewer than {REHEARSAL_STEPS} steps the numbers here mean nothing"
            rows.append(("rehearsal", note))
    if "beta1" in config:
        rows.append(("optimiser", f"AdamW, beta {config['beta1']:g} and {config['beta2']:g}"))
    if record.get("losses"):
        first, last = record["losses"][0], record["losses"][-1]
        rows.append(("loss, first and last step", f"{first:.4f}, {last:.4f}"))
    if "seconds" in record:
        machine = ", ".join(str(record[k]) for k in ("device", "torch") if k in record)
        rows.append(("seconds (device, torch)", f"{record['seconds']:.0f} ({machine})"))
    if "parameters" in record:
        rows.append(("parameters trained", f"{record['parameters']:,}"))
    return "\n".join(f"| {a} | {inert(b)} |" for a, b in rows)


def _table(accuracies: Sequence[Mapping[str, Any]]) -> str:
    words = {"pretrained": "pre-trained, theta_0 alone"}
    words |= {name: f"theta_0 + tau in the linearized model ({name})" for name in POSTHOC}
    lines = []
    for row in accuracies:
        what = words.get(row["method"], f"as it was trained ({inert(row['method'])})")
        lines.append(f"| {what} | {row['split']} | {row['n']} | {row['value']:.2f} |")
    return "\n".join(lines)
