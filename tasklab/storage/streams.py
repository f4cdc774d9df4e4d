"""Write a safetensors file a tensor at a time: a network that does not fit into memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, shown

if TYPE_CHECKING:
    from torch import Tensor

_KINDS = {  # types of numbers as safetensors names them
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    **{f"{u}int{n}": f"{'U' if u else 'I'}{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
#: Text of a file of `write_stream`, which a command may write over
MERGED = "merged_by_tasklab"


def write_stream(
    file: Path, like: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write a safetensors file a tensor at a time.

    Args:
        file: Written over.
        like: Shapes and types by name, in the order of `tensors`.
        tensors: Names and tensors; each is written before the next is asked for.

    Raises:
        TasklabError: If the format cannot hold a name or a type of numbers.
    """
    from tasklab.storage import seals  # start-up

    about: dict[str, Any] = {"__metadata__": {"format": "pt", MERGED: "1"}}
    place = 0
    for name, tensor in like.items():
        end = place + tensor.numel() * tensor.element_size()
        kind = _KINDS.get(str(tensor.dtype).removeprefix("torch."))
        if kind is None or name in about or name != name.encode("utf-8", "replace").decode():
            raise TasklabError(
                f"safetensors cannot hold {shown(name)} of {tensor.dtype}: leave it out, or rename "
                "it."
            )
        about[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [place, end]}
        place = end
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for (name, tensor), (wanted, kind) in zip(tensors, like.items(), strict=True):
            if (name, tensor.shape, tensor.dtype) != (wanted, kind.shape, kind.dtype):
                raise ValueError(f"{name} {tensor.dtype} {tuple(tensor.shape)} is not {wanted}")
            stream.write(seals.bits(tensor.cpu().resolve_neg()).data)
