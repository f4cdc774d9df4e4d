"""Widgets for a running notebook: coefficients and every task's accuracy, any method, any split.

A linear model answers at once; another needs a pass over all images at each movement and shows its
progress. Without a front end a table stands in.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from tasklab.analyses.coefficients import affine_scores
from tasklab.book.explore.payload import percent
from tasklab.errors import choose
from tasklab.evidence.experiments import LINEAR, Lab
from tasklab.evidence.figures.style import COLOURS, METHOD_LABEL
from tasklab.progress import output
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import EDITS

# JupyterLab: either the table or, while they live, the widgets; a dead one has no elements.
_STYLE = """<style>
.jp-OutputArea:has(.widget-vbox) > .jp-OutputArea-child:has(.tasklab-sliders),
.jp-OutputArea:has(.tasklab-sliders) .jp-OutputArea-output.jupyter-widgets:not(:has(*)) {
  display: none;
}
</style>"""

At = Callable[[Mapping[str, float]], Iterator[tuple[str, float]]]


def accuracies(lab: Lab, method: str, split: str = "val") -> At:
    """Return a function from {task: coefficient} to each task's name and accuracy in %, in turn.

    The model is theta_0 + sum_t alpha_t tau_t, or its linearization. The control task comes last,
    if there are prompts to classify it. Choose coefficients on the split `"val"`.
    """
    choose("method", method, EDITS)
    choose("split", split, ("val", "test"))
    every = list(lab.vectors(method).values())
    evaluator = lab.evaluator_of(method)
    control = () if lab.clip.text is None else (lab.suite.control.name,)  # it has prompts
    shown = (*lab.suite.names, *control)
    if method in LINEAR:
        scores = {task: affine_scores(evaluator, every, task, split) for task in shown}
    del every  # as long as sliders are on a page, no vector of a large model is kept for them

    def at(alphas: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        if method in LINEAR:
            each = [alphas.get(task, 0.0) for task in lab.suite.names]
            yield from ((task, scores[task].accuracy(each)) for task in shown)
            return
        moved = [(task, alphas[task]) for task in lab.suite.names if alphas.get(task)]
        total = TaskVector.sum(lab.tune(task, method).vector * a for task, a in moved)
        params = total.apply(evaluator.clip.encoder.params)
        for task in shown:
            features = evaluator.features(params, task, split)
            yield task, evaluator.accuracy(features, task, split)

    return at


class Coefficients:
    """Sliders for a method's coefficients, one for all tasks and one each, and bars.

    The control task has a bar and no slider; the mean is without it.

    Args:
        at: From coefficients to accuracies, of `accuracies`.
        chosen: The coefficient that was chosen on validation images, if known.
        start: The model where all coefficients are 0.
    """

    def __init__(
        self,
        at: At,
        tasks: tuple[str, ...],
        method: str,
        chosen: float | None = None,
        start: str = "pre-trained",
    ) -> None:
        self.at, self.tasks, self.method, self.chosen = at, tasks, method, chosen
        self.start = start
        self.before = dict(at({}))
        self.controls = [name for name in self.before if name not in tasks]

    def _ipython_display_(self) -> None:
        """Show a table, which stays without a kernel, or the widgets in its place."""
        from IPython.display import display

        display({"text/plain": repr(self), "text/html": self._table()}, raw=True)
        if output() == "notebook":
            display(self.widget())

    def __repr__(self) -> str:
        return f"sliders for {len(self.tasks)} task vectors, {METHOD_LABEL[self.method]} model"

    def _table(self) -> str:
        same = ", all at 0 (chosen)" if self.chosen == 0 else ""
        columns = {f"{self.start}{same}": self.before}
        if self.chosen:
            shared = dict.fromkeys(self.tasks, self.chosen)
            columns[f"all at {self.chosen:g}"] = dict(self.at(shared))
        table = pd.DataFrame(columns).rename_axis("task")
        mean = table.loc[list(self.tasks)].mean()
        table = table.rename({name: f"{name} (control)" for name in self.controls})
        table.loc["mean of the tasks"] = mean
        text = f"{METHOD_LABEL[self.method]} model, accuracy in %; in a running notebook: sliders."
        table = table.to_html(float_format=percent)
        return f'{_STYLE}<div class="tasklab-sliders"><p>{html.escape(text)}</p>{table}</div>'

    def widget(self) -> Any:
        """Return the widgets, at coefficients of 0."""
        import ipywidgets as widgets

        wide, narrow = widgets.Layout(width="11em"), widgets.Layout(width="7em")
        linear = self.method in LINEAR  # else it computes where a slider is let go
        look = {"min": -1, "max": 1, "step": 0.05, "continuous_update": linear}
        sliders = {task: widgets.FloatSlider(0.0, **look) for task in self.tasks}
        every, whose = widgets.FloatSlider(0.0, **look), widgets.Label("all tasks", layout=wide)
        mean, progress = widgets.HTML(), widgets.HTML(layout=narrow)
        bars = {task: widgets.HTML() for task in self.before}
        moving = False  # several sliders at once

        def show(_: object = None) -> None:
            nonlocal moving
            if moving:
                return
            accuracies = {}
            alphas = {task: slider.value for task, slider in sliders.items()}
            moving = True  # the common slider follows
            every.value = round(sum(alphas.values()) / len(alphas), 3)
            whose.value = "all tasks" if len(set(alphas.values())) == 1 else "all tasks (mean)"
            moving = False
            for task, value in self.at(alphas):
                accuracies[task] = value
                bars[task].value = _bar(value, self.before[task], self.start, COLOURS[self.method])
                progress.value = "" if linear else f"{len(accuracies)} of {len(bars)} tasks"
            both = (accuracies, self.before)
            now, before = (sum(map(x.__getitem__, self.tasks)) / len(self.tasks) for x in both)
            progress.value = ""
            mean.value = f"<b>Mean accuracy {percent(now)} %</b> ({self.start} {percent(before)} %)"

        def share(alpha: float) -> None:
            nonlocal moving
            if moving:
                return
            moving = True
            for slider in sliders.values():
                slider.value = alpha
            moving = False
            show()

        marks = {self.start: 0.0}
        if self.chosen is not None:
            marks[f"all at {self.chosen:g} (chosen)"] = self.chosen
        buttons = [widgets.Button(description=m, layout={"width": "auto"}) for m in marks]
        for button, alpha in zip(buttons, marks.values(), strict=True):
            button.on_click(lambda _, alpha=alpha: share(alpha))
        every.observe(lambda change: share(change["new"]), "value")
        for slider in sliders.values():
            slider.observe(show, "value")
        show()
        rows = [
            widgets.HBox([widgets.Label(task, layout=wide), sliders[task], bars[task]])
            for task in self.tasks
        ]
        blank = widgets.Layout(width="300px", margin="2px")  # as a slider has
        rows += [
            widgets.HBox([widgets.Label(f"{name} (control)", layout=wide),
                          widgets.Box(layout=blank), bars[name]])
            for name in self.controls
        ]  # fmt: skip
        common = widgets.HBox([whose, every, progress])
        return widgets.VBox([widgets.HBox([*buttons, mean]), common, *rows])


def coefficients(
    lab: Lab, method: str = "linearized", split: str = "val", *, records: pd.DataFrame | None = None
) -> Coefficients:
    """Return sliders from -1 to 1 for the coefficients of a method's vectors, and bars.

    The coefficient that was chosen in `records` of an addition of task vectors gets a button.

    Args:
        lab: Model, tasks, seeds, scale and store.
        method: Of the vectors.
        split: On which images the bars are computed.
        records: Of an addition.
    """
    at, tasks = accuracies(lab, method, split), lab.suite.names
    chosen = None if records is None else _chosen(records, method)
    start = "probes" if lab.parameters.head == "probe" else "pre-trained"
    return Coefficients(at, tasks, method, chosen, start)


def _chosen(records: pd.DataFrame, method: str) -> float | None:
    rows = records[(records["experiment"] == "addition") & (records["method"] == method)]
    order = {"by": ["n_tasks", "seed"], "ascending": [False, True]}
    rows = rows[rows["metric"] == "absolute"].sort_values(**order)
    return None if rows.empty else float(rows["alpha"].iloc[0])


def _bar(value: float, before: float, start: str, colour: str) -> str:
    return (
        '<div style="display:flex;gap:.6em;align-items:center;white-space:nowrap">'
        '<div style="position:relative;width:14em;height:.9em;border:1px solid gray">'
        f'<div style="position:absolute;top:0;bottom:0;width:{value}%;background:{colour}"></div>'
        f'<div title="{start} {percent(before)} %" style="position:absolute;top:-3px;'
        f'bottom:-3px;left:{before}%;width:2px;background:currentcolor"></div></div>'
        f"{percent(value)} %</div>"
    )
