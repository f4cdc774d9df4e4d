"""What a user does with vectors, in a process of its own whose surroundings are odd.

`python tests/environments.py FOLDER` runs it in a new interpreter.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

MODEL, TASKS = "mini_xs", ("Signs", "Textures")


def numbers(folder: Path) -> dict[str, object]:
    """Train two vectors, evaluate, merge and compare them; return what came out, bit for bit."""
    from tasklab import Lab
    from tasklab.__main__ import main

    lab = Lab(MODEL, tasks=TASKS, steps=2, progress=False, store_root=folder / "store")
    found: dict[str, object] = {}
    vectors = [lab.vector(task) for task in TASKS]
    for task, vector in zip(TASKS, vectors, strict=True):
        vector.save(folder / f"{task}.safetensors")
        found[task] = digest(vector)
    merged = lab.merge("ties", vectors)
    found["merge"] = digest(merged)
    found["evaluate"] = dataclasses.asdict(lab.evaluate(merged, TASKS[0]))
    files = [str(folder / f"{task}.safetensors") for task in TASKS]
    words = ["compare", *files, "--model", MODEL, "--steps", "1", "--methods", "arithmetic,ties"]
    words += ["--store-root", str(folder / "store"), "--out", str(folder / "r.html"), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if status := main(words):  # no assertion: there may be none
            raise RuntimeError(f"compare ended with {status}")
    report = json.loads(out.getvalue())
    found["compare"] = [{**one, "seconds": None} for one in report["merges"]]
    return json.loads(json.dumps(found, default=lambda array: array.tolist()))


def digest(vector) -> str:
    """Return a hash of a vector's names and numbers."""
    parts = [(name, str(x.dtype), x.cpu().numpy().tobytes()) for name, x in vector.items()]
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()


def outcome(folder: Path, settings: Iterable[Callable] = ()) -> None:
    """Write into a folder what came out under some settings: numbers, or the error."""
    from tasklab.errors import TasklabError

    try:
        with contextlib.ExitStack() as stack:
            within = lambda: numbers(folder)  # noqa: E731
            for setting in settings:
                made = setting()
                if hasattr(made, "__exit__"):
                    stack.enter_context(made)
                elif made is not None:  # what runs the rest in its own way
                    within = lambda made=made, rest=within: made(rest)  # noqa: E731
            found: dict[str, object] = {"numbers": within()}
    except TasklabError as error:
        found = {"sentence": str(error)}
    except BaseException:
        found = {"raw": traceback.format_exc()}
    with contextlib.suppress(OSError):  # no setting of warnings or streams reaches this
        file = os.open(folder / "outcome.json", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(file, json.dumps(found).encode())
        os.close(file)


if __name__ == "__main__":
    outcome(Path(sys.argv[1]))
