"""Rules of one's own beside the methods of the package: a function in a Python file.

    def merge(vectors):                         # {task: TaskVector}, -> TaskVector
        return sum(vectors.values()) / len(vectors)

The coefficient of the result is searched for, as for every method. A function with a parameter
`features` is given a function of a task vector and a task, which returns features (N, D) of N
training images of the task, without labels, under the model edited by the vector. The function is
given copies, which it may change; what it prints goes to the standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tasklab.analyses.merging import registry
from tasklab.analyses.merging.registry import Method
from tasklab.errors import TasklabError, shown, unknown
from tasklab.taskvector import TaskVector

FEATURES = "features"  # the parameter of rules that look at images
IMAGES = 256  # training images of each task, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Method):
    """A rule from a user's file."""

    rule: Callable[..., Any]

    @property
    def function(self) -> Callable[..., TaskVector]:
        """Task vectors, and `features` if the rule asks for it -> one task vector."""

        def merged(vectors: Any, *, alpha: float = 1.0, features: Any = None) -> TaskVector:
            named = vectors if isinstance(vectors, Mapping) else dict(enumerate(vectors))
            more = {FEATURES: features} if self.needs else {}
            copies = {
                task: TaskVector({name: x.clone() for name, x in one.items()}, one.base)
                for task, one in named.items()
            }
            with _told(f"{self.place}:"):
                made = self.rule(copies, **more)
            if not isinstance(made, TaskVector):
                if not (isinstance(made, Mapping) and made):
                    raise TasklabError(f"{self.title} returns {shown(made)}, and no TaskVector.")
                made = TaskVector(made)
            first = next(iter(named.values()))
            for name, x in made.items():
                if name not in first or first[name].shape != x.shape:
                    raise TasklabError(
                        f"{self.title} returns a {shown(name)} of shape {tuple(x.shape)}, which no "
                        "vector has."
                    )
                if not bool(x.isfinite().all()):
                    raise TasklabError(f"{self.title} returns a {shown(name)} that is not finite.")
            return alpha * made

        return merged

    @property
    def source(self) -> str:
        """Where the rule is from."""
        return self.place

    @property
    def options(self) -> dict[str, Any]:
        """Options of the rule beside the vectors."""
        return {"alpha": 1.0, **({FEATURES: None} if self.needs else {})}


def take(word: str) -> str:
    """Read a rule from `FILE.py` or `FILE.py:FUNCTION`, and return its name.

    Raises:
        TasklabError: If there is no such file or function, the file cannot be run, or the function
            does not take vectors.
    """
    place, _, name = word.rpartition(":") if ".py:" in word else (word, "", "merge")
    file = Path(place)
    if not file.is_file():
        raise TasklabError(f"there is no file {shown(place)} with a rule of merging.")
    if not word.isprintable():  # tables have it: letters that are no UTF-8 end them
        raise TasklabError(f"a rule's file needs a name of ordinary letters, not {shown(place)}.")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    module = _run(file, digest)
    functions = {n: f for n, f in vars(module).items() if callable(f) and not inspect.isclass(f)}
    if not functions:
        raise TasklabError(f"{place} has no function: define {name}(vectors).")
    if name not in functions:
        raise unknown(f"function of {place},", name, functions)
    rule = functions[name]
    try:
        parameters = list(inspect.signature(rule).parameters.values())
        first, *rest = parameters
    except ValueError:
        raise TasklabError(f"{word}: {name} takes no vectors.") from None
    if lacking := [p.name for p in rest if p.default is p.empty and p.name != FEATURES]:
        raise TasklabError(
            f"{word}: {name} asks for {', '.join(lacking)}; a rule takes vectors, and {FEATURES} "
            "if it looks at images."
        )
    text = (inspect.getdoc(rule) or inspect.getdoc(module) or "a rule of one's own").splitlines()[0]
    needs = FEATURES if any(p.name == FEATURES for p in rest) else ""
    title = file.stem if name == "merge" else f"{file.stem}: {name}"
    about: dict[str, Any] = {"place": word, "title": title, "text": text, "paper": ""}
    registry.add(word, Own(**about, needs=needs, rule=rule, digest=digest))
    return word


def _run(file: Path, digest: str) -> Any:
    name = f"tasklab_rule_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "it is a file of Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # which dataclasses and pickles of it look up
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with _told(f"{file} cannot be run:"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


@contextlib.contextmanager
def _told(begin: str) -> Iterator[None]:
    """Turn errors and exits of a user's code into one sentence, and its output into notes."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except TasklabError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
        raise TasklabError(f"{begin} {what}") from error


def features_of(
    encoder: Any, images: Callable[[str], Tensor]
) -> Callable[[Mapping[str, Tensor], str], Tensor]:
    """Return the function by which a rule looks at images: task vector, task -> features (N, D).

    Derivatives with respect to the vector's tensors are kept.

    Args:
        encoder: The model, at theta_0.
        images: A task -> its training images (N, 3, h, w).
    """

    def features(vector: Mapping[str, Tensor], task: str) -> Tensor:
        theta = encoder.params
        params = {name: x + vector[name] if name in vector else x for name, x in theta.items()}
        return encoder(params, encoder.preprocess(images(task)))

    return features
