"""Options without an effect: errors, or, of notebook parameters, a line on the error stream.

People give notebook parameters to all commands alike; so they are no errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasklab.cli import runs
from tasklab.cli.runs import checked, seeds_of
from tasklab.errors import TasklabError, abridged
from tasklab.models.zoo import text_suite

if TYPE_CHECKING:
    from tasklab.cli.parsing import Given

_OF_RUNS = ("steps", "lr", "seeds", "precision", "vectors")
_OF_IMAGES = ("suite", "head", "preset", "data_root", "device")


def check(
    given: Given, names: Sequence[str], *, own: bool, base: str | None = None, looks: bool = True
) -> str:
    """Return a sentence on notebook parameters without an effect; raise for contradictions.

    Args:
        given: The notebook parameters that are given.
        names: Of the vectors; TASK@METHOD are runs of the store.
        own: Whether --data gives tasks.
        base: The checkpoint that published vectors start from.
        looks: Whether the model classifies images, or its texts.
    """
    model = given.get("model")
    if own and model and text_suite(model):
        raise TasklabError(
            f"--data: {model} reads texts, and folders of --data hold images: leave --data out, or "
            "take a model of images (`tasklab list models`)."
        )
    if own and given.get("suite") is not None:
        raise TasklabError("--data gives the tasks in place of a suite's: leave --suite out.")
    if base is not None and given.get("init") is not None:
        raise TasklabError("--base is the start of the vectors: leave --init out.")
    known = checked({name: x for name, x in given.items() if name != "suite" or model})
    if given.get("seeds") is not None and len(seeds_of(known)) > 1:
        raise TasklabError(
            "--seeds stands for several runs, and a vector is one: TASK@METHOD@SEED names its seed."
        )
    of_runs = [*map(runs.is_named, names)]
    if base is not None and names and all(of_runs):
        refuse({"base": base}, "runs of the store start from their model's own weights")
    if any(of_runs):
        return ""
    why = "no vector is a run of the store (TASK@METHOD)"
    if not looks:
        why += ", and this merge looks at no images"
        return idle({name: given.get(name) for name in (*_OF_RUNS, *_OF_IMAGES)}, why)
    if model and known.vocabulary == "open":  # else heads are of runs, or probes
        asked = [n for n in _OF_RUNS if n != "steps" or not known.rehearsal]
        return idle({name: given.get(name) for name in asked}, why)
    return ""


def refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise if options are given that have no effect.

    Args:
        options: Name -> value; `None`, `False` and empty ones are not given, and the device cpu is
            the one in use. A name in capitals is a word and no option.
        why: The reason, for the message.
    """
    if words := _given(options):
        them = "it" if len(words) == 1 else "them"
        raise TasklabError(f"{abridged(words)} would have no effect: {why}. Leave {them} out.")


def idle(options: Mapping[str, Any], why: str) -> str:
    """Return a sentence on options without an effect, as `refuse` takes them; empty for none."""
    words = _given(options)
    if not words:
        return ""
    return f"{abridged(words)} {'has' if len(words) == 1 else 'have'} no effect: {why}."


def _given(options: Mapping[str, Any]) -> list[str]:
    there = [name for name, x in options.items() if x not in (None, False, "", ())]
    named = [name for name in there if (name, options[name]) != ("device", "cpu")]
    return [one if one.isupper() else f"--{one.replace('_', '-')}" for one in named]
