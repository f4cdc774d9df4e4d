"""The embedded benchmark: a drawn world, nine tasks in it, and a small CLIP pre-trained on it.

Everything here works without a network. `sample` draws a task's images, `build` and `tokenize` give
the small CLIP and its tokenizer, `weights_path` the weights that ship with the package.
"""

from __future__ import annotations

__all__ = [
    "TEXT_VERSION", "VERSION", "build", "card", "sample", "sample_text", "tokenize", "weights_path",
]  # fmt: skip


def __getattr__(name: str):  # torch is imported only when something is drawn or built
    if name == "sample":
        from tasklab.mini import sampling as module
    elif name == "VERSION":
        from tasklab.mini import worlds as module
    elif name in {"sample_text", "TEXT_VERSION"}:
        from tasklab.mini import text as module
    elif name in {"weights_path", "card"}:
        from tasklab.mini import shipped as module
    elif name in {"build", "tokenize"}:
        from tasklab.mini import clip as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
