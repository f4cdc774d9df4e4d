"""Check that imported vectors belong to their tasks: each must raise accuracy on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasklab.bench.lab import Lab
from tasklab.bench.parameters import Parameters, folder
from tasklab.exchange import importing
from tasklab.storage.store import Store
from tasklab.tasks.images.loader import DecodedImages
from tasklab.tasks.suites import suite


class Checks:
    """Accuracies of imported vectors on validation images of the tasks that they name.

    `missing` lists tasks whose images are not here; `problem` describes a fault of the last one.
    """

    def __init__(self, model: str, place: Mapping[str, Any]) -> None:
        p = Parameters(model=model, suite="paper", **place)
        pictures = DecodedImages(
            suite=suite("paper"), root=folder("data_root", p.data_root), progress=False
        )
        self.missing = [task for task in pictures.suite.names if pictures.missing(task)]
        self.problem, self._parameters = "", p
        self._tasks = [task for task in pictures.suite.names if task not in self.missing]
        self._lab: Lab | None = None

    def told(self, store: Store, record: Mapping[str, Any]) -> str:
        """Return the accuracies before and after, in words; sets `problem`."""
        self.problem, task = "", record["task"]
        if task not in self._tasks:
            return ""
        if self._lab is None:
            about: dict[str, Any] = {"use": "evaluate", "images_of": self._tasks}
            self._lab = Lab(self._parameters, tasks=self._tasks, progress=False, **about)
        vector = importing.imported(store, record["model"], record["name"])
        found = self._lab.evaluate(vector, [task], "val")
        before, after = (100 * float(x[task].mean()) for x in (found.before, found.after))
        text = f"{before:.1f} → {after:.1f} % on {len(found.after[task])} images of {task}"
        if after > before:
            return text
        others = self._lab.evaluate(vector, self._tasks, "val")
        gains = {
            one: float(x.mean() - others.before[one].mean()) for one, x in others.after.items()
        }
        best = max(gains, key=lambda one: gains[one])
        more = f"; it raises that on {best} most" if gains[best] > 0 else ""
        self.problem = f"it does not raise accuracy on {task} ({text}){more}: mislabelled?"
        return text
