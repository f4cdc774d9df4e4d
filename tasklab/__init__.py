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

from tasklab.errors import advising

__version__ = "0.4.0"
_ADVICE = {
    "load load_model": 'models.load("mini") loads a model, TaskVector.load(path) a vector',
    "list_models": "`tasklab list models`; models.load(name) loads one",
    "METHODS methods": "`tasklab list methods`; analyses.merging.METHODS has the merge rules",
    "evaluate accuracy vector": 'Lab("mini").{name}(...)',
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
