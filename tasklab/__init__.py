"""Editing pre-trained models by arithmetic on their weights.

What a notebook imports; the names are listed in `__init__.pyi`, and each is loaded when it is first
used, so that the command line does not wait for torch.

    from tasklab import Lab, experiments, figures

    lab = Lab("mini")
    figures.addition_bars(experiments.addition(lab, ["nonlinear", "linearized"]))
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import lazy_loader

from tasklab.errors.advice import advising

__version__ = "0.4.0"
_LAB = 'Lab("mini")'
_ADVICE = {
    "load load_model from_pretrained": (
        'models.load("mini") loads a model, TaskVector.load(path) a vector'
    ),
    "list_models available_models Model": "`tasklab list models`; models.load(name) loads one",
    "list_tasks available_tasks datasets": (
        "`tasklab list tasks`; own.from_folder(name, path) makes your own"
    ),
    "METHODS methods": "`tasklab list methods`; analyses.merging.METHODS has the merge rules",
    "evaluate accuracy vector": f"{_LAB}.{{name}}(...)",
    "train fit task_vector": f'{_LAB}.vector("TASK") fine-tunes what is missing',
    "compare best_merge search": (
        f'`tasklab compare` for all merges, {_LAB}.merge("ties", search=True) for one'
    ),
    "ties tsv_m regmean average arithmetic dare": 'merge(base, [a, b], "{name}", alpha=...)',
    "merging": "merge(base, [a, b], method), or analyses.merging",
    "plot": f"{_LAB}.plot(evaluation), or figures.plot(table)",
    "Evaluation": f"{_LAB}.evaluate(vector) returns one",
    "Experiment run": "experiments.addition(lab, methods) and its like run one",
    "store": "Store() is the user's; lab.store is a lab's",
    "seed set_seed": f'{_LAB}.vector("TASK", seed=0); Lab("mini", seeds=[0, 1]) for several',
    "cka metrics": "analyses has the measures of models and vectors",
}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach_stub(__name__, __file__), _ADVICE
)
# Rooms that stood beside the library once: `import tasklab.experiments` goes on working.
_FORMER = {
    **dict.fromkeys(("chapters", "experiments", "figures", "records", "study"), "evidence"),
    **{"explore": "book", "cluster": "cli", "doctor": "cli"},
    **dict.fromkeys(("placement", "seals", "templates"), "storage"),
}
# Modules of the room experiments that are in the library's room bench.
_BENCH = ("answers", "contest", "labels", "lab", "minima", "parameters", "preflight", "scale")


class _Former(MetaPathFinder, Loader):
    """Finds modules under their former names; each is the module that it is today."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        known = top == __name__ and rest.partition(".")[0] in _FORMER
        return ModuleSpec(name, self) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        room, _, rest = spec.name.partition(".")[2].partition(".")
        place = "bench" if room == "experiments" and rest in _BENCH else f"{_FORMER[room]}.{room}"
        module = importlib.import_module(f"{__name__}.{place}{'.' * bool(rest)}{rest}")
        spec.loader_state = module.__spec__  # which the import system replaces
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own specification: it ran under its own name."""
        assert module.__spec__ is not None, "it has the former one"
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Former())
