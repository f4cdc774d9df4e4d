"""Published vectors in place of fine-tuning: a lab's access to them, and parts it leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tasklab import exchange
from tasklab.bench.parameters import Parameters
from tasklab.errors import LeftOutError, TasklabError
from tasklab.machine import gib
from tasklab.progress import cell, tell
from tasklab.storage.store import Store
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import POSTHOC
from tasklab.tuning.recipe import FineTune

_told: set[tuple[int | None, str]] = set()  # by the number of the notebook's cell


@dataclasses.dataclass(frozen=True)
class PublishedVectors:
    """The imported vectors of one source, for all tasks of a lab."""

    parameters: Parameters
    store: Store
    source: str
    names: Mapping[str, Mapping[str, str]]  #: In the store, by method and task

    @classmethod
    def of(
        cls, parameters: Parameters, store: Store, tasks: Sequence[str]
    ) -> PublishedVectors | None:
        """Return the vectors that are imported for a lab; `None` if its parameters name no source.

        Args:
            parameters: Of the lab; random weights have no published vector.
            store: Where imported vectors are.
            tasks: Names of the lab's tasks.

        Raises:
            TasklabError: If no method has a vector of every task.
        """
        p = parameters
        if p.vectors is None:
            return None
        source = exchange.published.source_of(p.vectors)
        if p.init == "random":
            return cls(p, store, source, {})
        wanted = exchange.published.vectors(source, p.model, tasks)
        names: dict[str, dict[str, str]] = {}
        for one in wanted:
            if exchange.published.imported(store, one):
                names.setdefault(one.method, {})[one.task] = one.name
        whole = {k: found for k, found in names.items() if len(found) == len(tasks)}
        if not whole:
            told = exchange.published.status(wanted, store, ask=False)
            raise TasklabError(
                f"no vectors of {source} for all of {', '.join(tasks)} are in "
                f"{store.root}: `python -m tasklab import --from {source} --model {p.model}` "
                f"fetches them (about {gib(sum(one.bytes for one in told))})."
            )
        return cls(p, store, source, whole)

    def __str__(self) -> str:
        about = exchange.published.entry(self.source)
        recipe = f" ({about['recipe']})" if about["recipe"] else ""
        return f"published vectors of {about['repository']}{recipe}, {', '.join(self.names)}"

    def has(self, method: str) -> bool:
        """Return whether vectors of a method, or of a post-hoc method's source, are published."""
        return POSTHOC.get(method, method) in self.names

    def lacks(self, methods: Iterable[str]) -> str:
        """Name methods without vectors."""
        methods = list(methods)
        if self.parameters.init == "random":
            return f"{', '.join(methods)}: no vectors of random weights"
        offered = exchange.published.offers(self.source, self.parameters.model)
        ends = [f"{m} ({'not imported' if POSTHOC.get(m, m) in offered else 'not published'})"
                for m in methods]  # fmt: skip
        return f"{', '.join(ends)}: no vectors of {self.source}"

    def place(self, task: str, method: str) -> tuple[str, dict[str, str]]:
        """Return the kind and configuration of a vector in the store, or raise a `LeftOutError`."""
        if not self.has(method):
            raise LeftOutError(self.lacks([method]))
        name = self.names[POSTHOC.get(method, method)][task]
        return exchange.importing.KIND, {"model": self.parameters.model, "name": name}

    def record(self, task: str, method: str) -> dict[str, Any]:
        """Return the record of a vector (`importing.add`)."""
        return exchange.importing.record(self.store, **self.place(task, method)[1])

    def vector(self, task: str, method: str, weights: str) -> TaskVector:
        """Return a vector.

        Args:
            task: Its task.
            method: How it was fine-tuned.
            weights: The hash of the lab's model.

        Raises:
            LeftOutError: If the method has no published vector.
            TasklabError: If it starts from other weights than the lab's model has.
        """
        about = self.record(task, method)
        if about["weights"] != weights:
            raise TasklabError(
                f"{about['name']} starts from the weights {str(about['weights'])[:12]}, and the "
                f"lab's model has {weights[:12]}."
            )
        return exchange.importing.imported(self.store, self.parameters.model, about["name"])

    def identity(self, task: str, method: str) -> dict[str, Any]:
        """Return all that determines a vector, for keys of records."""
        about = self.record(task, method)
        return {part: about[part] for part in ("name", "sha256", "method", "task", "weights")}


def untrained(config: FineTune, store: object = None) -> NoReturn:
    """Raise a `LeftOutError` that names the run: the trainer of a lab with published vectors."""
    raise LeftOutError(f"needs runs of {config.task} ({config.method}) at several settings")


def leave_out(text: str) -> None:
    """Show one note per cell about a part that is left out; outside of notebooks on stderr."""
    number = cell()
    if (number, text) in _told:
        return
    _told.add((number, text))
    if number is None:
        tell(f"left out: {text}")
        return
    from IPython.display import Markdown, display

    display(Markdown(f"*Left out: {text}.*"))
