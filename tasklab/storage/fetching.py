"""Large files of the hub: listed with their sizes, fetched so that an interruption costs little.

The hub's client starts a file anew in each process, and compares its length alone. Here a part that
a killed process left is continued, and a file enters the client's cache only after its checksum was
compared: with that in the hub's answer, and with one that is known beforehand.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import responses
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import huggingface_hub
from huggingface_hub import constants, file_download, utils

from tasklab import machine
from tasklab.errors import TasklabError, first_line, shown
from tasklab.progress import bar
from tasklab.storage import atomic, hub
from tasklab.storage.checksums import file_sha256

T = TypeVar("T")
PATIENCE = 2.5  # seconds to wait for a first answer of the hub
_log = logging.getLogger(__name__)
_TRIES = 3  # in a row that bring no byte
_PAUSE = 1.0  # seconds between them
_LONGEST = 60.0  # seconds: a hub that asks to wait longer ends the command
_CHUNK = 1 << 16
_ADVICE = {
    401: "Log in by `hf auth login`, if the repository is private or has terms to accept.",
    403: "Accept the terms on the repository's page, and log in by `hf auth login`.",
    404: "It may have another name by now; --source takes a folder of files that you have.",
}
_OFFLINE = (
    "With a network, ask again; without one, copy the repository's files here and give their "
    "folder by --source."
)
_LATER = "The same command goes on later."  # a busy hub, or one with a fault


class Remote(NamedTuple):
    """A file of a repository on the hub."""

    size: int  #: In bytes
    sha256: str | None  #: Of large files


class UnreachableError(TasklabError):
    """The hub does not answer, or refuses the request."""

    def __init__(self, what: str, error: str | Exception) -> None:
        code = getattr(getattr(error, "response", None), "status_code", 0)
        self.code = code  #: Of the hub's answer; 0 if there was none
        self.problem = error if isinstance(error, str) else first_line(error, typed=True)
        if code:
            self.problem = f"the hub answers {code} {responses.get(code, '')}".rstrip()
        advice = _ADVICE.get(code, _LATER if code else _OFFLINE)
        super().__init__(f"{what} could not be fetched ({self.problem}). {advice}")


class _Refused(Exception):  # noqa: N818 (an answer that another try would not change)
    pass


def listing(repository: str, revision: str | None = None, kind: str = "model") -> dict[str, Remote]:
    """Return the files of a repository by their paths.

    Args:
        repository: `owner/name` on the hub.
        revision: Commit or branch; `None` is the newest commit.
        kind: `"model"` or `"dataset"`.

    Raises:
        TasklabError: If the hub does not answer, or has no such repository.
    """
    request = urllib.request.Request(f"{constants.ENDPOINT}/api/{kind}s/{repository}")
    with _explained(repository, hub.unreachable(request, PATIENCE)):
        about = {"repo_type": kind, "revision": revision, "files_metadata": True}
        found = huggingface_hub.HfApi(endpoint=constants.ENDPOINT).repo_info(repository, **about)
        files = found.siblings or ()
        return {x.rfilename: Remote(x.size or 0, x.lfs.sha256 if x.lfs else None) for x in files}


@contextlib.contextmanager
def _explained(what: str, problem: str | None) -> Iterator[None]:
    """Raise an `UnreachableError` where the hub does not answer, or its client fails in a block."""
    if problem is not None and "HTTP Error" not in problem:  # the client has its own way to ask
        raise UnreachableError(what, problem)
    hub.guard()
    try:
        yield
    except TasklabError:
        raise
    except Exception as error:  # the client's errors have no common base
        raise UnreachableError(what, error) from error


def cached(
    repository: str, file: str, revision: str | None = None, kind: str = "model"
) -> Path | None:
    """Return a file that is in the hub's cache; `None` if it is not.

    Args:
        repository: `owner/name` on the hub.
        file: Its path in the repository.
        revision: Commit or branch; `None` is the newest commit that is there.
        kind: `"model"` or `"dataset"`.
    """
    found = huggingface_hub.try_to_load_from_cache(
        repository, file, revision=revision, repo_type=kind
    )
    return Path(found) if isinstance(found, str) else None


def unreachable(repository: str, file: str, kind: str = "model") -> str | None:
    """Return why the hub cannot be asked for a file, or `None` if it answers.

    Args:
        repository: `owner/name` on the hub.
        file: Its path in the repository.
        kind: `"model"` or `"dataset"`.
    """
    # After a redirect urllib asks by GET: for one byte, not for all, and without the user's token.
    headers, place = {"Range": "bytes=0-0"}, {"repo_type": kind}
    url = huggingface_hub.hf_hub_url(repository, file, **place)
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    if token := utils.build_hf_headers().get("authorization"):
        request.add_unredirected_header("Authorization", token)
    return hub.unreachable(request, PATIENCE)


def fetch(
    repository: str,
    file: str,
    *,
    revision: str | None = None,
    sha256: str | None = None,
    kind: str = "model",
    progress: bool = True,
) -> Path:
    """Return a file of the hub from its cache, where it is fetched to if need be.

    Args:
        repository: On the hub.
        file: In the repository.
        revision: Commit; by default the newest.
        sha256: Its checksum, where it is known beforehand.
        kind: Of the repository: model or dataset.
        progress: Whether to show a bar.

    Raises:
        TasklabError: If it cannot be fetched, or its checksum is not the hub's or `sha256`.
    """
    if found := cached(repository, file, revision, kind):
        if _is(found, found.resolve().name, sha256):
            return found
        if not _is(found, found.resolve().name, None):
            found.resolve().unlink()  # it was damaged since
    place: dict[str, Any] = {"revision": revision, "repo_type": kind}
    what, url = f"{repository}/{file}", huggingface_hub.hf_hub_url(repository, file, **place)
    cache = Path(constants.HF_HUB_CACHE)
    name = file_download.repo_folder_name(repo_id=repository, repo_type=kind)
    with _explained(what, unreachable(repository, file, kind)):
        about = _patiently(lambda: file_download.get_hf_file_metadata(url))
        if not (about.etag and about.size and about.commit_hash):
            raise TasklabError(
                f"{constants.ENDPOINT} does not answer as a hub does (checksum, size and commit) "
                f"when {what} is asked for: does this network ask for a login, or is HF_ENDPOINT "
                "not the address of a hub?"
            )
        blob, locks = cache / name / "blobs" / about.etag, cache / ".locks" / name
        for folder in (blob.parent, locks):
            folder.mkdir(parents=True, exist_ok=True)
        told = functools.partial(_log.warning, "waiting for the process that fetches %s", what)
        with atomic.alone(locks / f"{about.etag}.tasklab.lock", told):
            if blob.exists() and not _is(blob, about.etag, sha256):
                raise TasklabError(
                    f"{blob}, {what}, does not have the checksum {shown(sha256 or about.etag)}: "
                    "remove it and fetch it again, if the hub has not published another version."
                )
            part = blob.with_name(f"{blob.name}.tasklab.incomplete")
            while not blob.exists():
                continued = part.exists()
                _transfer(url, part, about.size, progress)
                if _is(part, about.etag, sha256):
                    part.replace(blob)
                    break
                part.unlink()
                if not continued:  # else what was left from before may be what is wrong
                    raise TasklabError(
                        f"what was fetched as {what} does not have the checksum "
                        f"{shown(sha256 or about.etag)}: it was removed. Fetch it again; if that "
                        "does not help, the mirror or the file is damaged."
                    )
        return Path(huggingface_hub.hf_hub_download(repository, file, **place))


def _patiently(ask: Callable[[], T]) -> T:
    """Return an answer of the hub; repeat the request where it is busy or fails."""
    for _ in range(_TRIES - 1):
        try:
            return ask()
        except Exception as error:  # the client's errors have no common base
            answer = getattr(error, "response", None)
            code = getattr(answer, "status_code", 0)
            wait = _wait(answer.headers) if answer is not None else 0.0
            if not (code >= 500 or code == 429) or wait > _LONGEST:
                raise
            time.sleep(wait)
    return ask()


def _wait(headers: Mapping[str, str]) -> float:
    told = headers.get("Retry-After", "")
    return max(_PAUSE, float(told)) if told.isdecimal() else _PAUSE


def _transfer(url: str, part: Path, size: int, progress: bool) -> None:
    """Append a file's missing bytes to `part`; renew a stalled connection.

    Raises:
        TasklabError: If the disk has no room, or several tries bring no byte.
    """
    have = part.stat().st_size if part.exists() else 0
    if (free := machine.disk(part.parent).free) < size - have:
        needed, there = machine.too_large(size - have, free)
        raise TasklabError(f"{url} takes {needed}, and {part.parent} has {there} free.")
    title, unit = f"fetching {url.rpartition('/')[2]}", "MB"
    with bar(
        round(size / 1e6) or 1, title, done=round(have / 1e6), unit=unit, on=progress
    ) as shown:
        tries = 0
        while (have := part.stat().st_size if part.exists() else 0) != size:
            try:
                _go_on(url, part, have if have < size else 0, size, shown)
            except _Refused as error:
                raise TasklabError(f"{url} cannot be fetched: {error}.") from error
            except Exception as error:  # the client's errors have no common base
                more = part.exists() and part.stat().st_size > have
                tries = 0 if more else tries + 1
                if tries == _TRIES:
                    kept = f"; {have:,} of {size:,} bytes are kept for the next time" * (have > 0)
                    why = first_line(error, typed=type(error) is not OSError)
                    raise TasklabError(f"{url} cannot be fetched: {why}{kept}.") from error
                time.sleep(_PAUSE)


def _go_on(url: str, part: Path, have: int, size: int, shown: Any) -> None:
    headers = {**utils.build_hf_headers(), "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={have}-"} if have else {}
    patience = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with huggingface_hub.get_session().stream(
        "GET", url, headers=headers, timeout=patience, follow_redirects=True
    ) as answer:
        code = answer.status_code
        if code in (401, 404):
            raise _Refused(f"the server answers {code}")
        if code >= 400 and code != 416:  # 403, too: the address to which it redirects is signed
            time.sleep(min(_LONGEST, _wait(answer.headers) - _PAUSE))
            raise OSError(f"the server answers {code}")
        told = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        goes_on = code == 206 and told is not None and int(told[1]) == have
        length, left = answer.headers.get("Content-Length"), size - have if goes_on else size
        if code != 416 and length not in (None, str(left)):
            raise OSError(f"the server answers with {length} bytes in place of {left}")
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            raise OSError("the server answers with a web page")
        with part.open("ab" if goes_on else "wb") as stream:
            for chunk in answer.iter_bytes(_CHUNK) if code != 416 else ():
                stream.write(chunk)
                shown.update(round(stream.tell() / 1e6) - shown.done)
                if stream.tell() > size:
                    raise _Refused(f"it is longer than the {size:,} bytes that the hub tells")
    if part.stat().st_size < size:
        raise OSError("the connection ended before the file did")


def _is(file: Path, etag: str, sha256: str | None) -> bool:
    """Return whether a file has the checksums of the hub's etag and of `sha256`."""
    if sha256 is not None and file_sha256(file) != sha256:
        return False
    if re.fullmatch(r"[0-9a-f]{64}", etag):  # of large files
        return file_sha256(file) == etag
    if re.fullmatch(r"[0-9a-f]{40}", etag):  # of git's
        made = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                made.update(chunk)
        return made.hexdigest() == etag
    return True
