"""The book's style: colour, marker and label of each method, and sizes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from tasklab.errors import TasklabError
from tasklab.evidence.figures.narrow import for_site
from tasklab.evidence.figures.pictures import WIDTH as WIDTH
from tasklab.evidence.figures.pictures import for_notebook, put_legend, show_once
from tasklab.evidence.records.papers import INIT_LABEL as INIT_LABEL
from tasklab.evidence.records.statements import on_site
from tasklab.evidence.records.table import is_awaited
from tasklab.tuning.methods import JOINT, TABLE

# Okabe and Ito's palette, distinguishable with the common forms of colour blindness; its yellow is
# too faint on white, so black, a grey, a brown and others end the list. Markers repeat the colours.
_LOOKS = {
    "pretrained": (INIT_LABEL["pretrained"], "#595959", "|"),
    **{name: (one.title, one.colour, one.marker) for name, one in TABLE.items() if name != JOINT},
    "probe": ("linear probe", "#A6A6A6", "X"),
    JOINT: (TABLE[JOINT].title, TABLE[JOINT].colour, TABLE[JOINT].marker),
}
METHOD_LABEL = {name: label for name, (label, _, _) in _LOOKS.items()}
COLOURS = {name: colour for name, (_, colour, _) in _LOOKS.items()}
MARKERS = {name: marker for name, (_, _, marker) in _LOOKS.items()}
INK = "#333333"  # reference lines and edges
# The dark page inverts lightness and keeps hues (`tasklab.css`), so that one picture serves both.
THEME: dict[str, Any] = {
    "context": "paper",
    "style": "whitegrid",
    "palette": list(COLOURS.values()),
    "font": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "rc": {
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 10),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 9),
        **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), 9),
        "legend.frameon": False,
        "axes.edgecolor": "#8C8C8C",
        "axes.linewidth": 0.8,
        "grid.color": "#E5E5E5",
        "grid.linewidth": 0.8,
        "figure.dpi": 180,
    },
}
Looks = Mapping[Any, tuple[str, str, str]]  # key -> label, colour, marker


def book_figure(function: Callable[..., Figure]) -> Callable[..., Figure | None]:
    """Draw in the book's style; the notebook's last line shows the figure.

    Returns `None` while the results are not recorded. A `$` in a name is drawn as it is.
    """

    @functools.wraps(function)
    def styled(*args: Any, **kwargs: Any) -> Figure | None:
        drawn = [*_tables(args[:1])]
        if drawn and all(map(is_awaited, drawn)):
            return None
        args, kwargs = _unmarked(args), {name: _unmarked(x) for name, x in kwargs.items()}
        open_before = set(plt.get_fignums())
        noted = _selected.set([])
        try:
            with plt.rc_context(), _laid_out_once():
                sns.set_theme(**THEME)
                figure = function(*args, **kwargs)
                if not isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
                    figure.set_layout_engine("constrained")  # in place of seaborn's grids'
        finally:  # else a notebook shows it twice: as open figure and as result
            chosen = _selected.get()
            _selected.reset(noted)
            for number in set(plt.get_fignums()) - open_before:
                plt.close(number)
        if not hasattr(figure, "_repr_mimebundle_"):  # a figure with links has its own
            shown = for_site if on_site() else for_notebook
            figure._repr_mimebundle_ = functools.partial(shown, figure)
        figure.records = _drawn((*args, *kwargs.values()), kwargs.get("split"))
        figure.drawn = _as_records(chosen)
        show_once(figure)
        return figure

    return styled


_selected: ContextVar[list[pd.DataFrame]] = ContextVar("selected")


def selected(rows: pd.DataFrame) -> None:
    """Note rows as selected for the figure that is being drawn, whose CSV has them."""
    noted = _selected.get(None)
    if noted is not None:
        noted.append(rows)


def _as_records(parts: list[pd.DataFrame]) -> pd.DataFrame | None:
    """Return selected records once each, without empty columns; `None` if none is left."""
    parts = [one for one in parts if isinstance(one, pd.DataFrame) and "value" in one]
    if not parts:
        return None
    rows = pd.concat([pd.DataFrame(one) for one in parts]).drop(columns="hits", errors="ignore")
    return rows.dropna(axis="columns", how="all").drop_duplicates()


def _drawn(given: Iterable[Any], split: str | None) -> pd.DataFrame | None:
    """Return the records that a caption counts: the first table, or those of the first list."""
    for tables in map(list, map(_tables, given)):
        if tables:
            rows = tables[0] if len(tables) == 1 else pd.concat(tables)
            return rows if split is None else rows[rows["split"] == split]
    return None


def _tables(given: Any) -> Iterator[pd.DataFrame]:
    if isinstance(given, pd.DataFrame):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tables(one)


@contextlib.contextmanager
def _laid_out_once() -> Iterator[None]:
    """Skip the layouts of seaborn's grids, which are replaced: a third of the time."""
    theirs = sns.axisgrid.Grid.tight_layout
    sns.axisgrid.Grid.tight_layout = lambda grid, **_: grid
    try:
        yield
    finally:
        sns.axisgrid.Grid.tight_layout = theirs


def _unmarked(given: Any) -> Any:
    r"""Return data with each `$` in a name escaped for matplotlib.

    >>> _unmarked({"a$b": ["$x$", 1]})
    {'a\\$b': ['\\$x\\$', 1]}
    """
    if isinstance(given, str):
        return re.sub(r"(?<!\\)\$", r"\\$", given)
    if isinstance(given, list | tuple) and type(given) in (list, tuple):
        return type(given)(map(_unmarked, given))
    if type(given) is dict:
        return {_unmarked(name): _unmarked(value) for name, value in given.items()}
    if not isinstance(given, pd.DataFrame) or "$" not in "".join(map(str, _texts(given))):
        return given
    attrs, given = given.attrs, given.rename(index=_unmarked, columns=_unmarked)
    for name in given.columns[[not pd.api.types.is_numeric_dtype(x) for x in given.dtypes]]:
        if isinstance(given[name].dtype, pd.CategoricalDtype):
            given[name] = given[name].cat.rename_categories(_unmarked)
        else:
            given[name] = given[name].map(_unmarked)
    given.attrs = attrs
    return given


def _texts(df: pd.DataFrame) -> Iterator[object]:
    yield from df.columns
    yield from df.index if not pd.api.types.is_numeric_dtype(df.index.dtype) else ()
    for _, column in df.items():
        if not pd.api.types.is_numeric_dtype(column.dtype):
            yield from (one for one in column.drop_duplicates() if isinstance(one, str))


class NothingToDrawError(TasklabError):
    """The records of a figure are missing."""


def once_recorded(figure: Callable[..., Figure], *given: Any, **more: Any) -> Figure | None:
    """Return a figure, or `None` if its records are missing.

    Args:
        figure: Draws it.
        given: Its positional arguments.
        more: Its keyword arguments.
    """
    try:
        return figure(*given, **more)
    except NothingToDrawError:
        return None


def method_looks(methods: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of each method."""
    return {method: _LOOKS[method] for method in methods}


def key(
    figure: Figure, looks: Looks, extra: Iterable[Artist] = (), *, line: str = "-", **more: Any
) -> None:
    """Put a legend of groups above the figure.

    Args:
        figure: Without a legend.
        looks: Label, colour and marker of each group.
        extra: Further artists that have a label.
        line: Line style of the groups; empty for markers alone.
        more: `width` and `free` of `put_legend`.
    """
    handles: list[Artist] = []
    for label, colour, marker in looks.values():
        size = {"ls": "", "ms": 11, "mew": 2} if marker == "|" else {"ls": line}
        handles.append(Line2D([], [], color=colour, marker=marker, label=label, **size))
    if handles := [*handles, *extra]:
        put_legend(figure, handles, [str(handle.get_label()) for handle in handles], **more)
