"""Where a notebook is that runs in JupyterLab, in the output of its first cell.

*Run all* scrolls to the last cell, and results are far from there: the view goes back to the top, where the
line names the section and the cell that runs, and at the end how long all took.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import IPython.display

from tasklab.book.words import say
from tasklab.progress import duration

_OPENED = "JPY_SESSION_NAME"  # set by JupyterLab: the notebook's path
# *Run all* makes the last cell the active one; whoever runs another cell stays there.
_BACK = """
const box = document.querySelector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer");
const last = box && [...box.querySelectorAll(".jp-Cell")].pop();
if (last && last.classList.contains("jp-mod-active")) box.scrollTop = 0;
"""


@dataclasses.dataclass
class Line:
    """The progress line, with its state."""

    cells: Sequence[tuple[str, str]]  #: Of code: id, and the heading above
    show: Callable[[str], None]
    began: float = dataclasses.field(default_factory=time.monotonic)
    last: int = -1  #: Place of the cell that runs

    def before(self, info: Any) -> None:
        """Name the cell that runs."""
        places = [place for place, (name, _) in enumerate(self.cells) if name == info.cell_id]
        if places:
            self.last = places[0]
            section = self.cells[self.last][1]
            spent = time.monotonic() - self.began
            since = f", {duration(spent)} so far" if spent > 1 else ""
            self.show(f"*Running: {section}, cell {self.last + 1} of {len(self.cells)}{since}.*")

    def after(self, result: Any) -> None:
        """Print the outcome, after the last or a failed cell."""
        spent = duration(max(1.0, time.monotonic() - self.began))
        if not result.success:
            where = f"{self.cells[self.last][1]}, cell {self.last + 1}" if self.last >= 0 else ""
            self.show(f"*Stopped at {where}.*" if where else "*Stopped.*")
        elif self.last == len(self.cells) - 1:
            self.show(f"*All {len(self.cells)} cells have run, in {spent}. The results are below.*")


def watch() -> Line | None:
    """Show the line from now on; `None` where JupyterLab runs no notebook here."""
    shell, opened = IPython.get_ipython(), os.environ.get(_OPENED, "")
    cells = cells_of(Path(opened)) if opened else []
    if shell is None or not cells:
        return None
    # the line takes the script's place when the next cell runs
    handle = IPython.display.display(IPython.display.Javascript(_BACK), display_id=True)
    line = Line(cells, lambda text: handle.update(say(text)))
    shell.events.register("pre_run_cell", line.before)
    shell.events.register("post_run_cell", line.after)
    return line


def cells_of(notebook: Path) -> list[tuple[str, str]]:
    """Return the id of each code cell with the heading above it; empty if it is no notebook."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
    except (OSError, ValueError, LookupError):
        return []
    found, heading = [], "the beginning"
    for cell in cells:
        lines = "".join(cell["source"]).splitlines()
        if cell["cell_type"] == "markdown":
            titles = [one.lstrip("# ") for one in lines if one.startswith("#")]
            heading = titles[-1] if titles else heading
        elif cell["cell_type"] == "code":
            found.append((cell.get("id", ""), heading))
    return found
