"""Find weights on this machine by their files and folders, without loading or downloading them.

`tasks.images.loader.DecodedImages.state` finds images.
"""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import safetensors
from huggingface_hub import constants

from tasklab import mini, models, storage
from tasklab.errors import TasklabError
from tasklab.mini import shipped
from tasklab.models import loading, weights
from tasklab.models.zoo import Spec
from tasklab.storage.tensors import safe_open
from tasklab.tuning.footprint import span

THERE = ("shipped", "found")
READY = (*THERE, "fetchable")


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a model."""

    model: str
    state: str  #: `"shipped"`, `"found"`, `"fetchable"`, `"missing"` or `"damaged"`
    where: str  #: The file that was found, or the repository and file that were looked for
    memory: tuple[int, int]  #: Bytes of fine-tuning, one image at a time and with whole batches
    note: str = ""  #: What is wrong with them
    problem: str = ""  #: The same as a sentence with a remedy; empty unless they are missing


def find_weights(
    entry: Spec, reachable: bool | None = None, *, init: str = "pretrained"
) -> Weights:
    """Return the state of a model's weights in the places that `loading.load` searches.

    Args:
        entry: The model.
        reachable: Whether the hub answers; `None` asks it.
        init: `"pretrained"` or `"random"`, which needs no file of most models.
    """
    file, note = _expected(entry)
    about: dict[str, Any] = {"model": entry.name, "where": file, "memory": span(entry) or (0, 0)}
    if entry.kind == "bert" and (packed := models.sentences.archive(entry)):
        return Weights(**about | {"state": "found", "where": str(packed)})
    about["note"] = note
    try:
        path = loading.locate(entry.name, init, fetch=False, reachable=reachable)
        beside = _beside(entry, reachable) if path and init == "pretrained" else ""
    except weights.DamagedError as error:
        return Weights(**about | {"state": "damaged", "note": str(error)}, problem=str(error))
    except TasklabError as error:
        return Weights(**about, state="missing", problem=str(error))
    if path is None:
        return Weights(**about, state="fetchable" if init == "pretrained" else "found")
    if beside:
        note = f"the weights are there, {beside} of {entry.repository} is not"
        about |= {"where": f"{entry.repository} {beside}", "note": note}
        problem = f"of model {entry.name!r} {note}: `tasklab fetch {entry.name}` gets it."
        return Weights(**about, state="missing", problem=problem)
    wrong = damage(path)
    state = "damaged" if wrong else "shipped" if entry.shipped else "found"
    return Weights(**about | {"state": state, "where": str(path), "note": wrong})


def _expected(entry: Spec) -> tuple[str, str]:
    """Return the place of absent weights, and a note on it."""
    if entry.shipped:
        folder = shipped.extra_folder() if entry.extra else shipped.FOLDER
        note = "too many to ship: pre-train it" if entry.extra else "reinstall tasklab"
        return str(folder / f"{entry.shipped_as}.safetensors"), note
    file = models.sentences.WEIGHTS if entry.kind == "bert" else entry.published
    return f"{entry.repository} {file}", _interrupted(entry.repository)


def _beside(entry: Spec, reachable: bool | None) -> str:
    """Return an unavailable file that a model needs beside its weights; empty if none is."""
    if entry.shipped or entry.kind not in ("t5", "bert"):
        return ""
    file = models.sentences.TOKENIZER if entry.kind == "bert" else "tokenizer.json"
    there = models.sentences.local(entry, file) if entry.kind == "bert" else None
    if there or storage.fetching.cached(entry.repository, file):
        return ""
    return file if weights.unreachable(entry.repository, file, reachable) else ""


def _interrupted(repository: str) -> str:
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"
    try:
        begun = sum(part.stat().st_size for part in blobs.glob("*.incomplete"))
    except OSError:
        return ""
    return f"a download stopped after {begun / 2**20:.0f} MiB" if begun else ""


def damage(path: Path) -> str:
    """Describe damage at either end of a file of weights; empty if none is seen.

    Of the oldest format of `torch.save` only the start is read.
    """
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "np"):
                return ""
        with path.open("rb") as stream:
            start = stream.read(2)
        whole = start[:1] == b"\x80" or (start == b"PK" and zipfile.is_zipfile(path))
        return "" if whole else "not a whole file of torch.save"
    except (OSError, safetensors.SafetensorError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def input_side(entry: Spec) -> tuple[int, int | None, str | None]:
    """Return a model's input size in pixels, `shorter` and `resize` of its encoder, unloaded."""
    if entry.reads_text:
        raise TasklabError(f"model {entry.name!r} reads texts: no images are decoded for it.")
    if entry.shipped:
        return mini.vit.SIZE, None, None
    if entry.kind == "vit":
        import timm

        card = timm.get_pretrained_cfg(f"{entry.arch}.{entry.pretrained}").to_dict()
        found = loading.timm_input(card)
        size, crop = found["image_size"], found["crop"]
        return size, int(size / crop), found["resize"]
    import open_clip

    size = open_clip.get_model_config(entry.arch)["vision_cfg"]["image_size"]
    return (size if isinstance(size, int) else size[0]), None, None
