"""Weights and data sets on this machine, by their files and folders.

Nothing is loaded, decoded or downloaded.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import safetensors
from huggingface_hub import constants

from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.mini import shipped
from tasklab.models import loading, sentences, weights
from tasklab.models.zoo import Spec
from tasklab.storage import fetching, folders
from tasklab.tasks.images import finding
from tasklab.tasks.suites import paper_data_sets, paper_task
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


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set of the suite `paper`."""

    task: str
    state: str  #: `"found"`, `"decoded"` (without originals), `"missing"`, `"damaged"`, `"unknown"`
    where: str  #: The folder, or the repository that has it
    sides: tuple[int, ...] = ()  #: Sizes of the models' input that it is decoded for
    note: str = ""  #: What is wrong with it


def find_weights(entry: Spec, reachable: bool) -> Weights:
    """Return the state of a model's weights, looked for where `weights.find` does."""
    memory = span(entry) or (0, 0)
    if entry.shipped:
        folder = shipped.extra_folder() if entry.extra else shipped.FOLDER
        own = folder / f"{entry.shipped_as}.safetensors"
        if not own.is_file():
            note = "too many to ship: pre-train it" if entry.extra else "reinstall tasklab"
            return Weights(entry.name, "missing", str(own), memory, note)
        wrong = damage(own)
        return Weights(entry.name, "damaged" if wrong else "shipped", str(own), memory, wrong)
    if entry.kind == "bert":
        return _sentence_encoder(entry, reachable, memory)
    repository, file = entry.repository, entry.published
    if path := weights.local(entry.name, repository, file):
        if wrong := damage(path):
            return Weights(entry.name, "damaged", str(path), memory, wrong)
        if entry.kind != "t5" or fetching.cached(repository, "tokenizer.json") or reachable:
            return Weights(entry.name, "found", str(path), memory)
        note = f"the weights are there, tokenizer.json of {repository} is not"
        return Weights(entry.name, "missing", f"{repository} tokenizer.json", memory, note)
    state, note = "fetchable" if reachable else "missing", _interrupted(repository)
    return Weights(entry.name, state, f"{repository} {file}", memory, note)


def _sentence_encoder(entry: Spec, reachable: bool, memory: tuple[int, int]) -> Weights:
    files = (sentences.WEIGHTS, sentences.TOKENIZER)
    if packed := sentences.archive(entry):
        return Weights(entry.name, "found", str(packed), memory)
    try:
        found = [sentences.local(entry, file) for file in files]
    except TasklabError as error:
        return Weights(entry.name, "damaged", entry.repository, memory, str(error))
    if found[0] and (found[1] or reachable):
        wrong = damage(found[0])
        return Weights(entry.name, "damaged" if wrong else "found", str(found[0]), memory, wrong)
    absent = files[bool(found[0])]
    state, note = "fetchable" if reachable else "missing", _interrupted(entry.repository)
    return Weights(entry.name, state, f"{entry.repository} {absent}", memory, note)


def _interrupted(repository: str) -> str:
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "blobs"
    try:
        begun = sum(part.stat().st_size for part in blobs.glob("*.incomplete"))
    except OSError:
        return ""
    return f"a download stopped after {begun / 2**20:.0f} MiB" if begun else ""


def damage(path: Path) -> str:
    """Return the damage that both ends of a file of weights show; empty if none.

    Of the oldest format of `torch.save` only the start is looked at.
    """
    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, "np"):
                return ""
        with path.open("rb") as stream:
            start = stream.read(2)
        whole = start[:1] == b"\x80" or (start == b"PK" and zipfile.is_zipfile(path))
        return "" if whole else "not a whole file of torch.save"
    except (OSError, safetensors.SafetensorError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def find_data(name: str, root: Path | None = None, cache: Path | None = None) -> Data:
    """Return the state of a data set of the suite `paper`.

    Args:
        name: Of the data set.
        root: Folder of data sets.
        cache: Folder of decoded images; by default the user's.
    """
    cache = cache or folders.data()
    task, sides = paper_task(paper_data_sets()[name]), decoded_sides(name, cache)
    try:
        return Data(name, "found", str(finding.find(task, root).folder), sides)
    except TasklabError as error:
        if sides:
            return Data(name, "decoded", str(cache / "pictures" / name), sides)
        repository = paper_data_sets()[name]["hub"]["repo"]
        if finding.candidates(task.place, root):
            return Data(name, "damaged", repository, note=str(error))
        return Data(name, "missing", repository)


def decoded_sides(name: str, cache: Path) -> tuple[int, ...]:
    """Return the sizes at which all splits of a data set are decoded, those to evaluate on."""
    sides: dict[str, set[int]] = {"train": set(), "val": set(), "test": set()}
    for file in (cache / "pictures" / name).glob("*[!l]/manifest.json"):  # not *.partial
        try:
            manifest = json.loads(file.read_text("utf-8"))
            sides[manifest["split"]].add(int(manifest["transform"]["side"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    trained = sides["train"] or paper_data_sets()[name].get("control", False)
    return tuple(sorted(sides["val"] & sides["test"])) if trained else ()


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
