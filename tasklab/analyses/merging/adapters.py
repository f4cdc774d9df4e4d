"""Adapters of peft (LoRA) as changes of the weights that they were trained on, exactly.

    W = W_0 + s B A,      s = alpha / r, or alpha / sqrt(r) where the adapter says use_rslora

B A has rank r, so a sum of adapters has a rank of at most the sum of theirs. `factored` writes a
merged change as an adapter again, cut to a rank by its singular value decomposition.

Letters: O outputs, I inputs, r rank.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tasklab.analyses.merging import settings
from tasklab.analyses.merging.settings import CONFIG
from tasklab.analyses.merging.spaces import Factors
from tasklab.analyses.merging.vectors import is_matrix
from tasklab.errors import TasklabError, abridged, shown, whole
from tasklab.storage import atomic, state_dicts, torch_files
from tasklab.storage.files import Files
from tasklab.storage.lazy import Lazy, like
from tasklab.storage.tensors import explained

_log = logging.getLogger(__name__)
WEIGHTS = "adapter_model.safetensors"
FILES = (WEIGHTS, "adapter_model.bin")  # first comes first
_PREFIX = "base_model.model."
_PART = re.compile(r"\.(lora_(?:embedding_)?[AB])(?:\.weight)?$")
_OWN_PART = re.compile(r"\.(lora_\w+)")  # of a variant of LoRA
_RUNNING = re.compile(r"\.lora_(?:embedding_)?[AB]\.[^.]+(?:\.weight)?$")  # of a network in use
_SAVED = re.compile(r"\.modules_to_save(?:\.[^.]+)?(?=\.)")


class _Low(NamedTuple):
    """One weight's factors, by the names of their tensors."""

    A: str
    B: str
    scale: float
    turned: bool  #: Stored inputs x outputs


def is_adapter(place: Path) -> bool:
    """Return whether a folder is an adapter of peft."""
    return (place / CONFIG).is_file()


def turned_in(network: nn.Module) -> dict[str, bool]:
    """Return of each weight of a linear layer whether it is stored inputs x outputs."""
    kinds = {"Conv1D": True, "Linear": False}
    named = ((name, type(one).__name__) for name, one in network.named_modules())
    return {f"{name}.weight": kinds[kind] for name, kind in named if kind in kinds}


def opened(
    place: Path, base: Mapping[str, Tensor] | None, turned: Mapping[str, bool] | None = None
) -> Adapter:
    """Return the adapter in a folder, as `Adapter`.

    Args:
        place: The folder.
        base: The weights that it was trained on.
        turned: Of weights, whether they are stored inputs x outputs, as far as that is known.
    """
    if base is None:
        raise TasklabError(f"{str(place)!r} is an adapter: give the base that it changes.")
    return Adapter(place, tensors(place), base, turned)


def tensors(place: Path) -> Mapping[str, Tensor]:
    """Return the tensors in an adapter's folder; a pickle is read without executing it."""
    file = next((place / name for name in FILES if (place / name).is_file()), None)
    if file is None:
        raise TasklabError(f"the adapter {str(place)!r} has no {WEIGHTS}: save it again.")
    found = Files(file) if file.name == WEIGHTS else state_dicts.tensors(torch_files.read(file))
    if not found:
        raise TasklabError(f"the adapter {str(file)!r} holds no tensors: save it again.")
    return found


def check_no_adapter(place: Path, names: Iterable[str]) -> None:
    """Raise if names of tensors are those of an adapter, which is a folder with its settings."""
    if low := [name for name in names if _PART.search(name)]:
        raise TasklabError(
            f"{str(place)!r} holds an adapter ({abridged(low, 1)}): give its folder, with its "
            f"{CONFIG}."
        )


class Adapter(Lazy):
    """The weights of a base with an adapter of peft, each made when it is asked for.

    Args:
        place: The adapter's folder.
        files: Its tensors.
        base: The weights that it was trained on.
        turned: Of weights, whether they are stored inputs x outputs, as far as that is known.

    Raises:
        TasklabError: If it is no LoRA, or a DoRA, or names matrices that the base lacks.
    """

    def __init__(
        self,
        place: Path,
        files: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        turned: Mapping[str, bool] | None = None,
    ) -> None:
        self.base, self.files, self.names = base, files, base
        config = settings.read(place)
        self._low, self._added, self._saved = dict[str, _Low](), dict[str, tuple[str, float]](), {}
        parts: dict[str, dict[str, str]] = {}
        for name in files:
            plain = _SAVED.sub("", name.removeprefix(_PREFIX))
            if ".base_layer.out_proj.lora_" in plain:
                raise TasklabError(
                    f"{str(place)!r} adapts {shown(plain.partition('.base_layer')[0])}, an "
                    "nn.MultiheadAttention, whose output projection peft changes twice: merge it "
                    "into its base by peft (merge_and_unload), and give the whole network."
                )
            if "lora_magnitude_vector" in plain:
                raise settings.of_dora(place)
            if match := _PART.search(plain):
                parts.setdefault(plain[: match.start()], {})[match[1]] = name
            elif plain.endswith(".lora_B.bias"):
                module = plain.removesuffix(".lora_B.bias")
                self._added[f"{module}.bias"] = name, settings.scale(config, module)
            elif _RUNNING.search(plain):
                raise TasklabError(
                    f"{str(place)!r} names {shown(plain)} as a network in use does: save the "
                    "adapter by peft (save_pretrained)."
                )
            elif other := _OWN_PART.search(plain):
                raise settings.not_read(place, f"a part {shown(other[1])} beside its two matrices")
            else:
                self._saved[plain.replace(".base_layer.", ".")] = name
        for module, own in parts.items():
            embedding = "lora_embedding_A" in own
            letters = (
                ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
            )
            if set(own) != set(letters):
                raise TasklabError(f"{str(place)!r} has half of the factors of {shown(module)}.")
            A, B = (own[letter] for letter in letters)
            if odd := [n for n in (A, B) if not _is_factor(like(files, n))]:
                raise TasklabError(
                    f"{str(place)!r} has {abridged(odd)}, which is no matrix of LoRA."
                )
            self._low[f"{module}.weight"] = _Low(A, B, settings.scale(config, module), embedding)
            rank, told = like(files, A).shape[0], settings.rank(config, module)
            if rank != told:
                raise TasklabError(
                    f"{shown(module)} of the adapter {str(place)!r} has rank {rank}, and {told:g} "
                    f"in its {CONFIG}, by which it is scaled: give the settings it was saved with."
                )
        lacking = [n for n in (*self._low, *self._added, *self._saved) if n not in base]
        if lacking:
            raise TasklabError(
                f"the adapter {str(place)!r} changes {abridged(lacking)}, which the base lacks: "
                "give the base that it was trained on, with its names."
            )
        self._turn(place, bool(config.get("fan_in_fan_out")), turned or {})
        self._check(place)
        self._saved = {  # peft also saves embeddings that stay as they are
            name: stored
            for name, stored in self._saved.items()
            if not torch.equal(files[stored].float(), base[name].detach().cpu().float())
        }

    def _turn(self, place: Path, told: bool, known: Mapping[str, bool]) -> None:
        """Find which matrices are stored inputs x outputs, as those of transformers' Conv1D.

        Shapes tell of all that are not square. The setting `fan_in_fan_out` does not: where both
        kinds of layers are adapted, peft leaves that of the last one. Square ones follow others of
        their own name.
        """
        found: dict[str, bool] = {}
        for name, low in self._low.items():
            shape = (like(self.files, low.B).shape[0], *like(self.files, low.A).shape[1:])
            if not low.turned and len(shape) == 2 and shape[0] != shape[1]:
                found[name] = tuple(like(self.base, name).shape) == shape[::-1]
            elif low.turned or len(shape) != 2:
                found[name] = low.turned
        alike: dict[str, set[bool]] = {}
        for name, turned in found.items():
            alike.setdefault(_last(name), set()).add(turned)
        for name in self._low:
            turns = {known[name]} if name in known else alike.get(_last(name), set())
            if name not in found and len(turns) != 1:
                if told or any(of and not self._low[one].turned for one, of in found.items()):
                    raise TasklabError(
                        f"{str(place)!r} does not tell whether the square {shown(name)} is stored "
                        "inputs x outputs: give the base as a module, in Python, or merge the "
                        "adapter by peft (merge_and_unload)."
                    )
                turns = {False}
            found.setdefault(name, next(iter(turns), False))
        self._low = {name: low._replace(turned=found[name]) for name, low in self._low.items()}

    def _check(self, place: Path) -> None:
        beside = {name: stored for name, (stored, _) in self._added.items()}
        found = [
            (name, tuple(like(self.files, stored).shape))
            for one in (self._saved, beside)
            for name, stored in one.items()
        ]
        for name, low in self._low.items():
            A, B = (like(self.files, part).shape for part in (low.A, low.B))
            if A[0] != B[1]:
                raise TasklabError(
                    f"the factors of {shown(name)} in {str(place)!r} have ranks {A[0]} and {B[1]}, "
                    "as those of a convolution in groups, which peft does not merge either."
                )
            shape = (B[0], *A[1:])
            found.append((name, shape[::-1] if low.turned else shape))
        for name, shape in found:
            wanted = tuple(like(self.base, name).shape)
            if shape != wanted:
                raise TasklabError(
                    f"the adapter {str(place)!r} changes {shown(name)} by a tensor {shape}, where "
                    f"the base has {wanted}: it is of another base."
                )

    @property
    def turned(self) -> set[str]:
        """The matrices that are stored inputs x outputs."""
        return {name for name, low in self._low.items() if low.turned}

    @property
    def changed(self) -> tuple[str, ...]:
        """The parameters that it changes."""
        return tuple(dict.fromkeys((*self._low, *self._added, *self._saved)))

    def change(self, name: str) -> Tensor:
        """Return the change of a parameter, in float32; zeros if the adapter does not name it."""
        made = torch.zeros(like(self.base, name).shape)
        if name in self._saved:  # beside its factors, if those are of an embedding
            made = self.files[self._saved[name]].float() - self.base[name].detach().cpu().float()
        if name in self._added:
            bias, scale = self._added[name]
            made += scale * self.files[bias].float()
        if name in self._low:
            low = self._low[name]
            A, B = (self.files[part].float() for part in (low.A, low.B))
            product = low.scale * (B.flatten(1) @ A.flatten(1)).reshape(len(B), *A.shape[1:])
            made += product.T if low.turned else product
        return made

    def factors(self, name: str) -> Factors | None:
        """Return B and A with the change B A of a matrix; `None` where it is no product."""
        if name not in self._low or name in self._saved:
            return None
        low = self._low[name]
        A, B = (self.files[part].float() for part in (low.A, low.B))
        if A.ndim != 2:
            return None
        return Factors(low.scale * A.T, B.T) if low.turned else Factors(low.scale * B, A)

    def __getitem__(self, name: str) -> Tensor:
        return self.base[name].detach().cpu().float() + self.change(name)

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return torch.empty(like(self.base, name).shape, device="meta")


def factored(
    change: Mapping[str, Tensor],
    folder: Path,
    *,
    rank: int,
    start: str | None = None,
    turned: Collection[str] = (),
) -> None:
    """Write a change as a low-rank adapter of peft, and log its largest error, |W - B A| / |W|.

    Args:
        change: By name; matrices (O, I) that are not zero are factored, biases and the like that
            changed are refused, for LoRA has no place for them.
        folder: Written whole or not at all.
        rank: Of every matrix.
        start: Name or path of the base, for the adapter's settings.
        turned: Names of those that are stored inputs x outputs.

    Raises:
        TasklabError: If something changed that is no matrix, or the folder cannot be written.
    """
    whole("rank", rank, 1)
    tensors, lost, modules = dict[str, Tensor](), dict[str, float](), []
    for name in change:
        W = change[name]
        if not bool(W.any()):
            continue
        if not is_matrix(name, W) or not name.endswith(".weight"):
            raise TasklabError(
                f"{shown(name)} changed, and LoRA of linear layers has no place for it: write the "
                "merged weights."
            )
        W = W.T if name in turned else W
        U, s, Vh = torch.linalg.svd(W.double(), full_matrices=False)
        module, root = name.removesuffix(".weight"), s[:rank].sqrt()
        tensors[f"{_PREFIX}{module}.lora_A.weight"] = (
            (root[:, None] * Vh[:rank]).float().contiguous()
        )
        tensors[f"{_PREFIX}{module}.lora_B.weight"] = (U[:, :rank] * root).float().contiguous()
        lost[name] = float(s[rank:].norm() / s.norm())
        modules.append(module)
    config: dict[str, Any] = {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(modules),
        "base_model_name_or_path": start, "bias": "none",
        "fan_in_fan_out": bool({*turned} & lost.keys()),
        "use_rslora": False, "use_dora": False, "inference_mode": True, "task_type": None,
    }  # fmt: skip
    smallest = {n: min(change[n].shape) for n in lost}
    config["rank_pattern"] = {
        re.escape(n.removesuffix(".weight")): r for n, r in smallest.items() if r < rank
    }
    config["alpha_pattern"] = dict(config["rank_pattern"])
    with explained(folder.parent, "write to", "out"), atomic.folder(folder) as draft:
        from safetensors.torch import save_file

        save_file(tensors, draft / WEIGHTS, metadata={"format": "pt"})
        (draft / CONFIG).write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    if lost:
        worst = max(lost, key=lost.__getitem__)
        _log.info("rank %d loses %.1f %% of %s at most", rank, 100 * lost[worst], worst)


def _last(name: str) -> str:
    """Return the last part of a module's name, e.g. c_proj of h.0.attn.c_proj.weight."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _is_factor(tensor: Tensor) -> bool:
    return tensor.ndim > 1 and tensor.is_floating_point()
