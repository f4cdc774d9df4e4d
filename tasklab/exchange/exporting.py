"""Task vectors and tangent checkpoints as folders that others can use.

    FOLDER/task_vector.safetensors  tau, with model, task, method, theta_0's hash and configuration
           head.safetensors         the head that was trained with the encoder, if one was
           theta_0.safetensors      the pre-trained parameters, if they are asked for
           config.json              the run: configuration, record, accuracies; checksums of the
                                    files, with which the vector is compared when it is loaded
           README.md                the model card

The vector is what the run left, bit for bit. A linearized one is half of a model whose other half
is theta_0: with `theta_0.safetensors` beside it the folder is a whole tangent checkpoint.

A folder is there whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasklab import __version__
from tasklab.errors import TasklabError
from tasklab.exchange.naming import inert
from tasklab.exchange.sources import VECTOR_FILE
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import spec
from tasklab.storage import atomic
from tasklab.storage.store import Artifact, Store
from tasklab.storage.tensors import canonical, explained, file_sha256, write_tensors
from tasklab.tuning.methods import LINEAR, POSTHOC
from tasklab.tuning.recipe import REHEARSAL_STEPS

HEAD_FILE, BASE_FILE, CONFIG_FILE, CARD_FILE = (
    "head.safetensors", "theta_0.safetensors", "config.json", "README.md",
)  # fmt: skip
_TRAINING = (  # rows of the card's table: field of the configuration, in words
    ("suite", "suite of tasks"),
    ("data", "training images"),
    ("init", "encoder at the start"),
    ("head", "head"),
    ("steps", "steps"),
    ("batch_size", "batch size"),
    ("lr", "highest learning rate"),
    ("warmup", "warm-up steps"),
    ("weight_decay", "weight decay"),
    ("clip", "largest gradient norm"),
    ("precision", "precision"),
    ("seed", "seed"),
)


def write(
    run: Artifact,
    encoder: Encoder,
    folder: Path,
    *,
    accuracies: Sequence[Mapping[str, Any]] = (),
    base: bool = False,
) -> Path:
    """Write a fine-tuning run to a folder of its own, and return the folder.

    Where the folder holds the same run, its files are replaced one by one. The tensors are the same
    bits, so that it is whole at every moment; files of other names stay.

    Args:
        run: Of kind `finetune`.
        encoder: The model that it started from.
        folder: Must not be there yet, or hold the same run.
        accuracies: As `accuracies_of` gives them, for the card.
        base: Whether to write theta_0 as well; if it is there already, it stays.

    Raises:
        TasklabError: If the run starts from other weights, the folder holds something else, or it
            cannot be written.
    """
    if run.config["weights"] != encoder.weights_hash:
        raise TasklabError(
            f"the run starts from the weights {run.config['weights'][:12]}, and {encoder.name} has "
            f"{encoder.weights_hash[:12]}."
        )
    about = _about(run)
    content = {
        **about,
        "config": run.config,
        "record": run.record,
        "accuracies": list(accuracies),
        "tasklab": __version__,
    }
    with explained(folder, "write to", "--out"):
        _free(folder, content)
        base = base or (folder / BASE_FILE).is_file()
    tensors = run.tensors()
    head = {n: tensors.pop(n) for n in list(tensors) if n not in encoder.params}
    # The configuration comes first: by it the run's folder is known if the rest is cut off.
    order = (CONFIG_FILE, VECTOR_FILE, HEAD_FILE, BASE_FILE, CARD_FILE)
    with (
        explained(folder, "write to", "--out"),
        atomic.folder(folder, alone=True, order=order) as draft,
    ):
        write_tensors(tensors, draft / VECTOR_FILE, {"format": "pt", "tasklab": canonical(about)})
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

    They are those of the chapters' single-task tables: of the run itself, used as it was trained
    and, of non-linear runs, in the linearized model (post-hoc), and of the pre-trained model.

    Args:
        store: Where records of kind `records` are.
        runs: Of kind `finetune`.

    Returns:
        Rows with method, value (in %), n (images) and split.
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
        same = (config["weights"], config["suite"]) == (own["weights"], own["suite"])
        if own["suite"] == "own":  # the name stands for any folder: the run's records tell which
            mine = [one["data"][task] for one in configs if one["runs"].get(task) == own]
            same = same and config["data"].get(task) in mine
        return same and "head" not in own  # a head of its own has no accuracy before training
    return config["runs"].get(task) == own


def _about(run: Artifact) -> dict[str, Any]:
    config = run.config
    names = ("model", "init", "task", "method", "seed", "weights")
    return {name: config[name] for name in names} | {"run": run.key, "sha256": run.sha256}


def _free(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise a `TasklabError` if a folder holds anything but the same run."""
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
    """Return the model card: what it is, how to use it, how it was made, how good it is."""
    config = run.config
    linear = config["method"] in LINEAR
    kind = "Tangent task vector" if linear else "Task vector"
    tags = ["task-arithmetic", "task-vector", *(["tangent", "linearized"] if linear else [])]
    parts = [
        "\n".join(["---", "library_name: tasklab", "tags:", *(f"- {t}" for t in tags), "---"]),
        f"# {kind}: {inert(config['model'])}, {inert(config['task'])}, {inert(config['method'])}",
        _what(config, linear),
        _use(config, linear, base),
        "## Files\n\n" + _files(head, base),
        "## Training\n\n" + _training(run),
    ]
    if accuracies:
        parts.append("## Accuracy\n\n" + _table(accuracies, config["task"]))
    parts.append(
        "## Terms\n\nThis card states no licence. Whoever publishes the folder adds the one that "
        "the pre-trained weights and the data allow."
    )
    return "\n\n".join(parts) + "\n"


def _what(config: Mapping[str, Any], linear: bool) -> str:
    entry = spec(config["model"])
    weights = entry.source if entry.shipped else f"weights {entry.pretrained} ({entry.source})"
    text = (
        "A task vector is what fine-tuning changed, tau = theta - theta_0, with a tensor for each "
        f"parameter of the encoder that was trained. The model is `{config['model']}`: "
        f"{entry.arch}, {weights}"
        f"{'' if config['init'] == 'pretrained' else ', with a random encoder'}. The SHA-256 of "
        f"theta_0 is `{config['weights']}`: tau means nothing for other weights."
    )
    if linear:
        text += (
            "\n\n**The encoder was fine-tuned in its tangent space, and tau belongs there.** Its "
            "features are\n\n```\nf_lin(x; theta_0 + tau) = f(x; theta_0) + J(x; theta_0) tau\n"
            "```\n\nwhere J is the Jacobian of the features with respect to the parameters, at "
            "theta_0. theta_0 + tau in the ordinary network is another function, which was never "
            "trained."
        )
    return text


def _use(config: Mapping[str, Any], linear: bool, base: bool) -> str:
    model = config["model"]
    start = "" if config["init"] == "pretrained" else f', init="{config["init"]}"'
    lines = [
        f"from tasklab import checkpoints, models{', tangent' if linear else ''}",
        "",
        f'encoder = models.load("{model}"{start}).encoder',
        f'tau = checkpoints.load("{VECTOR_FILE}", encoder)',
        "x = encoder.preprocess(images)  # uint8, (B, 3, H, W)",
        "alpha = 1.0",
    ]
    if linear:
        lines += [
            "f0, jtau = tangent.jvp(encoder, encoder.params, tau, x)",
            "features = f0 + alpha * jtau",
        ]
    else:
        lines += ["features = encoder(tau.apply(encoder.params, alpha), x)"]
    text = "## Use\n\n```python\n" + "\n".join(lines) + "\n```\n\n"
    text += (
        "Sums of such vectors, each times a coefficient, edit the model for several tasks; "
        "a negative coefficient takes a task away."
    )
    return text + (_without_tasklab(linear) if base else "")


def _without_tasklab(linear: bool) -> str:
    text = (
        f"\n\n### Without tasklab\n\n`{BASE_FILE}` holds theta_0. `network` is the encoder as a "
        "`torch.nn.Module` in eval mode, whose parameters have the names in that file, and `x` its "
        "input, prepared as it was for the pre-training.\n\n"
    )
    lines = [
        "import torch",
        "from safetensors.torch import load_file",
        f"from torch.func import functional_call{', jvp' if linear else ''}",
        *(["from torch.nn.attention import SDPBackend, sdpa_kernel"] if linear else []),
        "",
        f'theta_0, tau = load_file("{BASE_FILE}"), load_file("{VECTOR_FILE}")',
        "alpha = 1.0",
    ]
    if linear:
        lines += [
            "tau = {name: tau.get(name, torch.zeros_like(p)) for name, p in theta_0.items()}",
            "torch.backends.mha.set_fastpath_enabled(False)  # it has no derivatives",
            "with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):",
            "    f0, jtau = jvp(",
            "        lambda theta: functional_call(network, theta, (x,)), (theta_0,), (tau,)",
            "    )",
            "features = f0 + alpha * jtau",
        ]
    else:
        lines += [
            "theta = theta_0 | {name: theta_0[name] + alpha * tau[name] for name in tau}",
            "with torch.no_grad():",
            "    features = functional_call(network, theta, (x,))",
        ]
    return text + "```python\n" + "\n".join(lines) + "\n```"


def _files(head: bool, base: bool) -> str:
    rows = [(VECTOR_FILE, "tau, by the names of the encoder's parameters")]
    rows += [(HEAD_FILE, "the head that was trained with the encoder")] if head else []
    rows += [(BASE_FILE, "theta_0")] if base else []
    rows += [(CONFIG_FILE, "the run: configuration, losses, machine, accuracies, checksums")]
    return "\n".join(["| file | holds |", "|---|---|", *(f"| `{a}` | {b} |" for a, b in rows)])


def _training(run: Artifact) -> str:
    config, record = dict(run.config), run.record
    if "lr" in record:  # what was taken where the configuration asks for a search
        config["lr"] = record["lr"]
    rows = [("method", config["method"])]
    for name, words in _TRAINING:
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
    return "\n".join(["| | |", "|---|---|", *(f"| {a} | {inert(b)} |" for a, b in rows)])


def _table(accuracies: Sequence[Mapping[str, Any]], task: str) -> str:
    lines = [
        f"On {inert(task)}, in %, of the images named; alpha is 1.",
        "",
        "| model | split | images | accuracy |",
        "|---|---|---|---|",
    ]
    words = {"pretrained": "pre-trained, theta_0 alone"}
    words |= {name: f"theta_0 + tau in the linearized model ({name})" for name in POSTHOC}
    for row in accuracies:
        what = words.get(row["method"], f"as it was trained ({inert(row['method'])})")
        lines.append(f"| {what} | {row['split']} | {row['n']} | {row['value']:.2f} |")
    return "\n".join(lines)
