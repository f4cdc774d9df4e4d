"""Tensors on the disk: safetensors files and checkpoints, written atomically, never unpickled.

A file that is written with a header holds, as `checksum`, that of its tensors and other texts,
which `read_tensors` and `load_checkpoint` compare once a process; files without one are read as
they are.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from tasklab.errors import LONG_PATH, TasklabError, is_out_of_memory, make_room, shown
from tasklab.storage import atomic, checksums

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)
_SEAL = "checksum"  # entry of a header
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST}


def save_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *explanation: str
) -> None:
    """Write tensors and a JSON-able `meta` to one safetensors file, replacing it atomically.

    Failures of writing are one error, as of `explained`; an earlier file stays.

    Args:
        path: Of the file.
        tensors: By name.
        meta: Is written into the header.
        *explanation: Of what is done, and of what chooses another folder, as of `explained`.
    """
    text = canonical(meta, "meta")
    with explained(path.parent, *explanation), atomic.replacing(path) as draft:
        write_tensors(tensors, draft, {"meta": text})


def load_checkpoint(
    path: Path, *, quiet: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return tensors and meta of `save_checkpoint`, or `None` without a whole checkpoint.

    A half-written or altered file is reported in the log and ignored: the work is then done again.
    `quiet` leaves the report to the caller.
    """
    if not path.exists():
        return None
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError("it is no file")
        with safe_open(path) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        older = _SEAL not in header and header["sha256"] == digest(tensors, header["meta"])
        if older or (_SEAL in header and _is_whole(path, tensors, header)):
            return tensors, json.loads(header["meta"])
        reason = "its checksum does not match"
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        reason = str(error) or type(error).__name__
    if not quiet:
        _log.warning("checkpoint %s is ignored: %s", path, reason)
    return None


@contextlib.contextmanager
def safe_open(path: Path, framework: str = "pt") -> Iterator[Any]:
    """Open a safetensors file, also one whose name is no UTF-8, which the library refuses.

    Args:
        path: Of the file.
        framework: Of its tensors: "pt" imports torch.
    """
    with contextlib.ExitStack() as stack:
        try:
            os.fsencode(path).decode()
        except UnicodeDecodeError:
            number = os.open(path, os.O_RDONLY)
            stack.callback(os.close, number)
            path = Path(f"/dev/fd/{number}")
        yield stack.enter_context(safetensors.safe_open(path, framework=framework))


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, without unpickling."""
    path = Path(path)
    if not path.is_file():
        raise TasklabError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(path) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _SEAL not in header or _is_whole(path, tensors, header):
            return tensors
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise TasklabError(
            f"{str(path)!r} is not a whole safetensors file ({error}). Fetch it again; a pickle "
            "(.pt, .pth, .bin) is never loaded: `tasklab import` reads the tensors of one."
        ) from error
    raise TasklabError(f"{path} is damaged: its checksum does not match. Export or fetch it again.")


@contextlib.contextmanager
def explained(
    root: Path, doing: str = "write to the store", instead: str = "TASKLAB_STORE or store_root"
) -> Iterator[None]:
    """Turn errors of the file system into one `TasklabError` with a remedy.

    Args:
        root: The folder or file that is read or written.
        doing: A verb with its preposition: `"write to"`.
        instead: Setting that chooses another folder.
    """
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        # safetensors has the number of the system's error in its text only
        inside = re.search(r"os error (\d+)", str(error))
        number = int(inside[1]) if inside else getattr(error, "errno", None)
        what = os.strerror(number) if number else str(error)
        place = str(root) if len(str(root)) <= LONG_PATH else shown(str(root), LONG_PATH)
        if number == errno.ENOTEMPTY:  # of a rename
            taken = getattr(error, "filename2", None) or place
            raise TasklabError(
                f"{taken} is there already, from another process: choose another folder with "
                f"{instead}."
            ) from error
        first = f"Make it {'readable' if doing.startswith('read') else 'writable'}"
        if number == errno.ENAMETOOLONG:
            first = "Give the file a shorter name"
        if number in _IN_THE_WAY:
            first = "Move the file that is in the way of a folder"
        first = make_room(number) or first
        raise TasklabError(
            f"cannot {doing} {place}: {what}. {first}, or choose another folder with {instead}. "
            "Nothing that was finished is lost."
        ) from error


def canonical(value: Mapping[str, Any], what: str = "config", indent: int | None = None) -> str:
    """Return JSON, the same text for equal values: sorted names, no NaN.

    Args:
        value: The names with their content.
        what: A name for it in errors.
        indent: In columns; `None` for one line.
    """

    def check(part: Any) -> None:
        if isinstance(part, Mapping):
            if not all(isinstance(name, str) for name in part):  # json would turn 1 into "1"
                raise TasklabError(f"{what} must have strings as names: {list(part)}.")
            part = list(part.values())
        if isinstance(part, list | tuple):
            for one in part:
                check(one)

    check(value)
    tight = (",", ":") if indent is None else None
    try:
        return json.dumps(
            dict(value), sort_keys=True, allow_nan=False, separators=tight, indent=indent
        )
    except (TypeError, ValueError) as error:
        raise TasklabError(f"{what} cannot be written as JSON: {error}.") from error


def write_tensors(
    tensors: Mapping[str, Tensor], file: Path, header: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file.

    Args:
        tensors: By name, from any device and of any layout.
        file: Its path; the folder must exist.
        header: Texts by name, to which the checksum of all is added; `None` for neither.
    """
    import safetensors.torch  # start-up

    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors wants each tensor alone in its memory: neither a view nor tied to another
        tensor = tensor.detach().cpu().resolve_neg().contiguous()
        memory = tensor.untyped_storage()
        if memory.nbytes() != tensor.nbytes or memory.data_ptr() in taken:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        own[name] = tensor
    if header is not None:
        header = {**header, _SEAL: _sealing(own, header)}
    file.touch()
    usual = file.stat().st_mode
    # safetensors has a draft of its own, of a name that nobody would look for
    room = file.with_name(f".{file.name.removeprefix('.')}{atomic.PARTIAL}")
    try:
        room.mkdir(exist_ok=True)
        safetensors.torch.save_file(own, room / "tensors", metadata=header)
        os.replace(room / "tensors", file)
    finally:
        atomic.remove(room)
    if header is not None:
        _in_order(file)
    with contextlib.suppress(OSError):  # some network disks have no modes
        file.chmod(usual)  # safetensors leaves a file that only its owner can read


def _in_order(file: Path) -> None:
    """Sort a file's texts: safetensors writes them in another order in each process."""
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        about = json.loads(stream.read(size))
        about["__metadata__"] = dict(sorted(about["__metadata__"].items()))
        text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            stream.seek(8)
            stream.write(text.ljust(size))


def text_sha256(value: Mapping[str, Any]) -> str:
    """Return the checksum of `value` as canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of named tensors and a text in hex digits, independent of their order."""
    content = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        content.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        content.update(_bytes_of(tensors[name]))
    return content.hexdigest()


def _is_whole(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bool:
    return checksums.once(path, _SEAL, lambda _: _sealing(tensors, header)) == header[_SEAL]


def _sealing(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    text = canonical({name: text for name, text in header.items() if name != _SEAL})
    contents = (
        (f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}", _bytes_of(tensors[name]))
        for name in sorted(tensors)
    )
    return f"{checksums.TREE}:{checksums.of_parts(text, contents)}"


def _bytes_of(tensor: Tensor) -> memoryview:
    from tasklab.storage import seals  # start-up

    return seals.bits(tensor).data
