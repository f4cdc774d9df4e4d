"""Query the Hugging Face hub's availability once and briefly; check names in its answers.

huggingface_hub retries for most of a minute, and uses a server's answer unchecked as file names in
its cache: see `guard`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
import urllib.error
import urllib.request
from typing import Any

import huggingface_hub
from huggingface_hub import constants

from tasklab.errors import TasklabError, shown

_HEADERS = ("ETag", "X-Linked-ETag", "X-Repo-Commit")  # become names of files and folders
_FIELDS = {"sha", "oid", "sha256"}  # likewise, of lists of files
_NAME = re.compile(r"(?!\.)[\w.:+=-]{1,200}", re.ASCII)


def unreachable(request: urllib.request.Request, seconds: float) -> str | None:
    """Return why the hub does not answer a request within some seconds, or `None` if it does.

    A thread asks, because no timeout holds for the look-up of a host name.
    """
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answer: list[str | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                answer.append(None)
        except Exception as error:  # any of them: there is no usable network
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            reason = error.reason if type(error) is urllib.error.URLError else error
            answer.append(getattr(reason, "strerror", None) or f"{type(error).__name__}: {reason}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"no answer from the hub within {seconds:g} seconds"


@functools.cache
def guard() -> None:
    """Refuse answers of the hub that would name a file outside of its client's cache.

    To be called before anything is fetched. A hostile mirror (`HF_ENDPOINT`) could otherwise write
    where it likes: by the ETag or the commit in a header, or a checksum in a list of files.
    """
    from huggingface_hub.utils import _http  # private: what needs no network works without it

    make = getattr(_http, "_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)

    def guarded() -> Any:
        client = make()
        hooks = client.event_hooks
        client.event_hooks = hooks | {"response": [*hooks.get("response", ()), check_answer]}
        return client

    huggingface_hub.set_client_factory(guarded)


def check_answer(response: Any) -> None:
    """Raise a `TasklabError` if an answer of a hub would name a file outside of the cache."""
    named = [(header, response.headers.get(header)) for header in _HEADERS]

    def note(one: dict[str, Any]) -> dict[str, Any]:
        named.extend((field, one[field]) for field in _FIELDS & one.keys())
        return one

    if "/api/" in response.request.url.path and not response.is_redirect:
        with contextlib.suppress(ValueError, RecursionError):  # no list of files
            json.loads(response.read(), object_hook=note)
    for what, value in named:
        # as the client takes the quotes off
        if value is not None and not _NAME.fullmatch(str(value).lstrip("W/").strip('"')):
            raise TasklabError(
                f"{response.request.url.host} answers with a {what} that names no file of the "
                f"hub's cache, {shown(value)}: nothing is fetched from there. Is HF_ENDPOINT set "
                "to a mirror that can be trusted?"
            )
