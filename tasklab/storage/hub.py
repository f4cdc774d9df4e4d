"""Whether the Hugging Face hub answers, asked once and for a short time.

Its own client tries again and again where there is no network, which takes most of a minute.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request


def unreachable(request: urllib.request.Request, seconds: float) -> str | None:
    """Return why the hub does not answer a request, or `None` if it does.

    The question is put in a thread, because no timeout holds for the look-up of a host name.

    Args:
        request: Of a page or file of the hub.
        seconds: How long to wait.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answer: list[str | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                answer.append(None)
        except Exception as error:  # any of them: there is no usable network
            reason = error.reason if type(error) is urllib.error.URLError else error
            answer.append(getattr(reason, "strerror", None) or f"{type(error).__name__}: {reason}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"no answer from the hub within {seconds:g} seconds"
