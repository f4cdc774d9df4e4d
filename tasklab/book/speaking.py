"""Sentences of a page, which change while its results come.

A page opens with a lab (`begin`). Where it computes its results, it notes their records (`note`), and
sentences that depend on them are shown at once and updated after each cell (`stand`).
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import IPython.display
import pandas as pd

from tasklab.book.words import say
from tasklab.evidence.chapters import MORE
from tasklab.evidence.study import sections
from tasklab.evidence.study.sections import Evidence

RECORDED_OF = sections.FIRST  # the model of the records that chapters show
AWAITED = "*The answer follows from the results below, once they are computed.*"
_NO_ANSWER = "*This run does not test this section's statements.*"


@dataclasses.dataclass
class Standing:
    """A sentence that is shown, and how it is made anew."""

    make: Callable[[], str]
    shown: str
    handle: Any  #: Of its output; `None` outside of IPython
    #: Number of tables from which it was made, and whether more were expected.
    made_of: tuple[int, bool]


@dataclasses.dataclass
class Page:
    """A chapter's page: its lab, the records that it has computed, its standing sentences."""

    lab: Any
    tables: list[pd.DataFrame] = dataclasses.field(default_factory=list)
    standing: list[Standing] = dataclasses.field(default_factory=list)
    ended: bool = False  #: Whether no more results come

    @property
    def live(self) -> bool:
        """Whether the page computes its results."""
        return bool(self.lab.parameters.live == "all")

    @property
    def chapter(self) -> str:
        """The chapter's name, of its appendix too."""
        return str(self.lab.chapter).removesuffix(MORE)

    @functools.cached_property
    def _recorded(self) -> Evidence:
        return sections.of_records(self.chapter)

    def evidence(self) -> Evidence:
        """Return the shipped evidence, or that of the results which this page has computed."""
        if not self.live:
            return self._recorded
        return self._of_run(len(self.tables))

    def _of_run(self, count: int) -> Evidence:
        kept: tuple[int, Evidence] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] != count:
            given = self.lab.parameters
            steps = None if given.steps is None else int(given.steps)
            found = sections.of_run(
                self.chapter, self.tables, given.model, init=given.init, steps=steps
            )
            kept = self.__dict__["_kept"] = (count, found)
        return kept[1]


_open: list[Page] = []  # the page of this process; the last one that was opened


def begin(lab: Any) -> Page:
    """Open a page: sentences are about this lab's records, or its computations."""
    page = Page(lab)
    _open[:] = [page]
    shell = _shell()
    if shell is not None and page.live:
        shell.events.register("post_run_cell", lambda *_: refresh())
    return page


def current() -> Page | None:
    """Return the page that was opened; `None` on pages beside the chapters."""
    return _open[0] if _open else None


def close() -> None:
    """Close the open page: later sentences belong to no chapter."""
    _open.clear()


def note(rows: pd.DataFrame) -> None:
    """Add records that the page has computed."""
    page = current()
    if page is not None and page.live and len(rows):
        page.tables.append(rows)


def stand(make: Callable[[], str]) -> Any:
    """Show a sentence; on a page that computes its results, update it as they come."""
    page, shell = current(), _shell()
    text = make()
    if page is None or not page.live or shell is None:
        return say(text)
    handle = IPython.display.display(say(text or AWAITED), display_id=True)
    page.standing.append(Standing(make, text or AWAITED, handle, (len(page.tables), False)))
    return None


def refresh() -> None:
    """Update the sentences that the page's records have changed."""
    page = current()
    if page is None:
        return
    now = len(page.tables), page.ended
    for one in [one for one in page.standing if one.made_of != now]:
        one.made_of, text = now, one.make() or (_NO_ANSWER if page.ended else AWAITED)
        if text != one.shown:
            one.shown = text
            one.handle.update(say(text))


def end() -> None:
    """Update all sentences a last time: no more results come."""
    page = current()
    if page is not None:
        page.ended = True
        refresh()


def of_records(text: str, of: str = "") -> str:
    """Return text about shipped records, with their model's name where the page is about a run.

    Drawings and folds, which begin with a tag, are left as they are.
    """
    page = current()
    if page is None or not page.live or not text.strip() or text.lstrip().startswith("<"):
        return text
    name = of or f"`{RECORDED_OF}`"
    listed = text.lstrip().startswith(("-", "|", "*Not", "1."))
    return f"*Recorded of {name}:*{chr(10) * 2 if listed else ' '}{text.strip()}"


def _shell() -> Any:
    return IPython.get_ipython()
