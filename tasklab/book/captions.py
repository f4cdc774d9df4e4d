"""Captions of figures, which lie in the metadata of the cells that draw them.

The metadata of such a cell have `{"tasklab": {"figure": "fig-name", "caption": "..."}}`.
Further keys are arguments of `caption`: `"kind": "live"` where the records do not say it,
`"experiment"` where they have several.
In a chapter the caption appears below the figure, with the size of the sample.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import IPython.display
import numpy as np
import pandas as pd

from tasklab.book.words import counted, say
from tasklab.tasks.suites import inputs

FIGURE = "**Figure.**"  # what a caption begins with; the site puts a number in its place
NOT_YET = "Not recorded yet."
KEY = "tasklab"  # of metadata, in notebooks and their outputs
FIRST = re.compile(r"(?<=[.:])\s+(?=[A-Z*$λ])")  # where a caption's first sentence ends
_follows: dict[str, Any] = {"notebooks": (), "live": False}


def follow(notebook: Path, *, live: bool = False) -> None:
    """Show captions below figures from now on; without IPython, do not change anything."""
    opened = os.environ.get("JPY_SESSION_NAME")  # set by JupyterLab
    _follows.update(notebooks=(*([Path(opened)] if opened else []), notebook), live=live)
    if shell := IPython.get_ipython():
        shell.events.register("post_run_cell", _below)


def _below(result: Any) -> None:
    info = result.info
    told = next(filter(None, (_of(path, info) for path in _follows["notebooks"])), None)
    if told and result.success:
        drawn, live = result.result, _follows["live"]
        rows = None if drawn is None else getattr(drawn, "records", None)
        IPython.display.display(caption(**told, records=rows, drawn=drawn is not None, live=live))


def _of(notebook: Path, info: Any) -> dict[str, Any] | None:
    """Return the caption in the metadata of the cell that has this name, or this code."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
    except (OSError, ValueError, LookupError):
        return None
    same = [cell for cell in cells if cell.get("id") == info.cell_id]
    same += [cell for cell in cells if "".join(cell["source"]) == info.raw_cell]
    found = [cell["metadata"].get(KEY, {}) for cell in same]
    return next((dict(one) for one in found if "caption" in one), None)


def caption(
    figure: str,
    caption: str,
    records: pd.DataFrame | None = None,
    *,
    experiment: str | None = None,
    drawn: bool = True,
    kind: str | None = None,
    counts: bool = True,
    live: bool = False,
    about: str = "",
) -> Any:
    """Return the caption of a figure.

    Args:
        figure: Its anchor on the site: `fig-tangent-loss`.
        caption: Markdown, whose first sentence is the figure's message.
        records: The plotted records; their numbers of seeds, tasks and images are added.
        experiment: Only its records are counted.
        drawn: Whether the figure is drawn; `False` while its results are not recorded.
        kind: `"live"` or `"recorded"`; by default that of the records
            (`page.results`, `study.recorded`).
        counts: Whether the numbers are added.
        live: Whether the chapter computes its figures, for any model. The first sentence, a message
            of recorded runs, is left out then.
        about: Text in place of that sentence.
    """
    if not drawn:
        return say(f"<!-- awaited {figure} -->\n\n*{NOT_YET}*")
    kind = kind or (records.attrs.get("kind", "") if records is not None else "")
    if records is not None and experiment:
        records = records[records["experiment"] == experiment]
    told = sample(records) if records is not None and counts else ""
    if re.match(r"one seed\b", told):  # alone it has no spread to be seen
        spread = r"[^;,.]*\bstandard deviations?\b[^;,.]*"
        caption = re.sub(f"[;,] {spread}", "", caption)
        caption = re.sub(rf"(^|(?<=\.) ){spread}[;.] ?(\w?)", _begun, caption)
    origin = ": ".join(filter(None, (kind.capitalize(), told)))
    lead = ""
    if live and kind == "live":
        caption = _without_message(caption, about)
        if records is not None and _noun(records) == "text":
            caption = re.sub(r"\bimage(s?)\b", r"text\1", caption)
    elif live and kind:
        lead = "*Recorded of `mini`:* "
    suffix = f" *{origin}.*" if origin else ""
    text = " ".join(filter(None, (FIGURE, f"{lead}{caption.strip()}{suffix}".strip())))
    return say(f"<!-- caption {figure} -->\n\n{text}")


def _begun(found: re.Match) -> str:
    """Return the start of a sentence whose first clause is left out."""
    return found[1] + found[2].upper()


def _without_message(caption: str, about: str) -> str:
    """Return a caption without its first sentence, the message of recorded runs."""
    if about:
        _, *rest = FIRST.split(caption.strip(), maxsplit=1)
        return " ".join([about, *rest])
    parts = FIRST.split(caption.strip(), maxsplit=1)
    return parts[-1] if len(parts) > 1 else ""


def sample(records: pd.DataFrame) -> str:
    """Return the numbers of seeds, tasks and images: `three seeds, eight tasks`.

    A range where methods differ, without the pre-trained model. Images are test images, or
    validation images if there are no others; costs have rounds.
    """
    experiments = {*records["experiment"]} if "experiment" in records else set()
    if experiments == {"cost"}:
        return counted(int(records["n"].min()), int(records["n"].max()), "round") + " of timing"
    if "method" in records and (records["method"] != "pretrained").any():
        records = records[records["method"] != "pretrained"]
    parts = []
    if "seed" in records:
        by = [n for n in ("model", "init", "method", "n_tasks") if n in records]
        seeds = (records.groupby(by, dropna=False) if by else records)["seed"].nunique()
        parts.append(counted(max(1, np.min(seeds)), max(1, np.max(seeds)), "seed"))
    columns = ("task", "other") if "cosines" in experiments else ("task",)
    named = [records[name].dropna().astype(str) for name in columns if name in records]
    names = pd.concat(named) if named else pd.Series(dtype=str)
    names = names[names != "all"]  # what is of all tasks at once, as a shared coefficient
    together = names.str.contains("+", regex=False) | (names == "all")  # beside tasks: of these
    names = names if together.all() else names[~together]
    if len(names) and names.str.contains("+", regex=False).all():
        parts.append(counted(names.nunique(), names.nunique(), "pair") + " of tasks")
    elif names.nunique() > 1:
        parts.append(counted(names.nunique(), names.nunique(), "task"))
    if {"n", "split"} <= {*records}:
        counts = records.dropna(subset="n").groupby("split")["n"].agg(["min", "max"])
        split = next((one for one in ("test", "validation") if one in counts.index), None)
        noun = f"{split} {_noun(records)}"
        each = " of each" if len(parts) > ("seed" in records) else ""
        low, high = map(int, counts.loc[split]) if split else (0, 0)
        parts += [counted(low, high, noun) + each] if split else []
    return ", ".join(parts)


def _noun(records: pd.DataFrame) -> str:
    """Return the noun for the tasks' inputs: image, text, or example for both kinds."""
    suites = {*records["suite"]} if "suite" in records else set()
    kinds = {inputs(suite).removesuffix("s") for suite in suites} or {"image"}
    return kinds.pop() if len(kinds) == 1 else "example"
