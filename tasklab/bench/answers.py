"""Accuracies of a model before and after an edit, with intervals paired over images.

Intervals are 95 %: images are drawn at random, the tasks are fixed (`analyses.shares`).
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tasklab.analyses import shares
from tasklab.analyses.shares import Answers, Copies
from tasklab.errors import choose
from tasklab.errors.advice import Advised
from tasklab.progress import columns

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation(Advised):
    """Effect of an edit on the accuracy of each task: a table, in a notebook with bars."""

    _advice = MappingProxyType(
        {
            "df to_frame to_df to_dataframe to_pandas frame dataframe accuracy results": (
                "evaluation.table()"
            ),
            "to_csv csv": "evaluation.table().to_csv(path)",
            "plot figure": "lab.plot(evaluation)",
            "to_dict json": "evaluation.rows",
        }
    )
    title: str  #: The model and the images
    before: Answers  #: Answers of the unedited model
    after: Answers  #: Answers of the edited one; the same as `before` where nothing was edited
    control: str = ""  #: Name of the control task, which the means leave out
    copies: Copies | None = None  #: Which images are the same; `None`: all differ
    inputs: str = "images"  #: What is classified, in the plural

    def __getitem__(self, task: str) -> dict[str, Any]:
        """Return the row of a task."""
        choose("task", task, self.after)
        return next(row for row in self.rows if row["task"] == task)

    @property
    def edited(self) -> bool:
        """Whether the vector changes the model."""
        return self.after is not self.before

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per task: its name, whether it is the control, images, accuracies and gain.

        `distinct` is the number of images that differ; `before` and `after` are accuracies in %,
        `gain` is in points. `low`, `high` and `half_interval` are the ends and half the width of
        the 95 % interval of the gain, or without an edit of the accuracy.
        """
        return [
            {"task": task, "control": task == self.control, "images": len(right)}
            | {"distinct": self._distinct(task)}
            | self._measured([task])
            for task, right in self.after.items()
        ]

    @property
    def mean(self) -> dict[str, Any]:
        """The same for the mean over tasks without the control; `None` for the control alone."""
        own = [task for task in self.after if task != self.control]
        return self._measured(own) if own else dict.fromkeys(self._measured([*self.after]))

    @property
    def gain(self) -> float:
        """Mean gain in points."""
        return self.mean["gain"]

    @property
    def harmful(self) -> bool:
        """Whether the edited model is surely worse on average."""
        mean = self.mean
        return self.edited and mean["high"] is not None and mean["high"] < 0

    def _measured(self, tasks: Sequence[str]) -> dict[str, Any]:
        before, after = ({t: side[t] for t in tasks} for side in (self.before, self.after))
        every = [shares.accuracy(side, self.copies) for side in (before, after)]
        shown = shares.gain(after, before, self.copies) if self.edited else every[1]
        found = {"before": every[0].value, "after": every[1].value}
        found["gain"] = shown.value if self.edited else 0.0
        return found | {"half_interval": shown.half, "low": shown.low, "high": shown.high}

    def _distinct(self, task: str) -> int:
        copies = self.copies or {}
        return len({*copies.get(task, range(len(self.after[task])))})

    def table(self) -> pd.DataFrame:
        """Return the rows as a table."""
        import pandas as pd  # here: half a second of start-up

        return pd.DataFrame(self.rows)

    def _lines(self, digits: int = 1) -> list[list[str]]:
        mean, lines = self.mean, []
        named = [(r["task"] + " (control)" * r["control"], r) for r in self.rows]
        for name, row in [*named, *([("mean of the tasks", mean)] if self._has_mean else [])]:
            images = str(row.get("images", ""))
            if row.get("images") != row.get("distinct"):
                images += f" ({row['distinct']} distinct)"
            if self.edited:
                spread = f"{row['low']:+z.{digits}f} to {row['high']:+z.{digits}f}"
                shown = [f"{row[side]:.{digits}f}" for side in ("before", "after")]
                shown.append(f"{row['gain']:+z.{digits}f}")
                lines.append([name, images, *shown, spread])
            else:
                spread = f"{row['low']:.{digits}f} to {row['high']:.{digits}f}"
                lines.append([name, images, f"{row['after']:.{digits}f}", spread])
        head = ["before", "after", "gain"] if self.edited else ["accuracy"]
        return [["", self.inputs, *head, "95 % interval"], *lines]

    @property
    def _has_mean(self) -> bool:
        return sum(task != self.control for task in self.after) > 1

    def __str__(self) -> str:
        return "\n".join([f"{self.title}, accuracy in %", *columns(self._lines(), right=True)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table of at most five columns, with a bar from each accuracy to that after.

        Of fewer than 1,000 images an accuracy is known to a point at best: its numbers are whole.
        """
        distinct = [row["distinct"] for row in self.rows]
        head, *lines = [
            [name, *numbers[:-1], f"{numbers[-1]} ({spread})".replace("-", "−")]
            for name, _, *numbers, spread in self._lines(int(min(distinct) >= _EXACT))
        ]
        counts = " to ".join(map(str, dict.fromkeys((min(distinct), max(distinct)))))
        counts += " distinct" * (distinct != [row["images"] for row in self.rows])
        values = [*self.rows, *([self.mean] if self._has_mean else [])]
        body = "".join(
            f"<tr>{''.join(f'<td {_APART}>{html.escape(cell)}</td>' for cell in line)}"
            f"<td>{_arrow(row['before'], row['after'])}</td></tr>"
            for line, row in zip(lines, values, strict=True)
        )
        heads = "".join(f"<th {_APART}>{cell}</th>" for cell in [*head, "0 to 100 %"])
        caption = html.escape(f"{self.title}, {counts} a task: accuracy in %")
        return f"<table><caption>{caption}</caption><tr>{heads}</tr>{body}</table>"


_EXACT = 1000  # images of a task from which on its accuracy is shown with a decimal
_APART = 'style="padding: .1em .6em; white-space: nowrap"'  # of cells


def _arrow(before: float, after: float) -> str:
    """Return an SVG of an accuracy's change on a scale from 0 to 100 %."""
    colour = "#0072B2" if after >= before else "#D55E00"
    return (
        '<svg width="160" height="14" role="img" '
        f'aria-label="from {before:.0f} to {after:.0f} %">'
        '<line x1="5" x2="155" y1="7" y2="7" stroke="#d9d9de"/>'
        f'<line x1="{5 + 1.5 * before:.1f}" x2="{5 + 1.5 * after:.1f}" y1="7" y2="7" '
        f'stroke="{colour}" stroke-width="4"/>'
        f'<circle cx="{5 + 1.5 * before:.1f}" cy="7" r="3" fill="#8C8C8C"/>'
        f'<circle cx="{5 + 1.5 * after:.1f}" cy="7" r="4" fill="{colour}"/></svg>'
    )
