"""Captions, sentences and code as Markdown that is computed."""

from __future__ import annotations

import pandas as pd
import pytest

from tasklab import page
from tasklab.records import tidy


def records(seeds=(0,), tasks=("Signs", "Scenes"), method="nonlinear", n=500):
    common = {"experiment": "single", "model": "mini", "metric": "single", "value": 50.0}
    return [
        {**common, "method": method, "task": task, "seed": seed, "n": n}
        for seed in seeds
        for task in tasks
    ]


def test_a_caption_tells_its_sample():
    table = tidy(records())
    text = page.caption("fig-a", "Accuracy $a$.", table, kind="live").data
    assert text == (
        "<!-- caption fig-a -->\n\n**Figure.** Accuracy $a$. "
        "*Live: one seed, two tasks, 500 test images of each.*"
    )
    assert page.caption("fig-a", "A toy.").data.endswith("**Figure.** A toy.")
    assert page.caption("fig-a", "A toy.", kind="recorded").data.endswith("*Recorded.*")


def test_a_sample_is_a_range_where_methods_differ_and_the_baseline_has_no_seeds():
    table = tidy(
        records(seeds=range(3))
        + records(method="linearized", n=1200)
        + records(seeds=range(7), method="pretrained")
    )
    assert page.sample(table) == "one to three seeds, two tasks, 500 to 1,200 test images of each"
    pairs = tidy(records(tasks=["Signs+Scenes", "Signs+Digits"]))
    assert page.sample(pairs).startswith("one seed, two pairs of tasks")
    assert page.sample(tidy(records(tasks=["Signs"]))) == "one seed, 500 test images of each"


def documented(x: int) -> int:
    """Say something.

    in several lines.
    """
    return x + 1


@pytest.mark.parametrize("function", [documented, page.word])
def test_source_is_the_functions_own_without_its_docstring(function):
    text = page.source(function).data
    assert text.startswith("```python\n# tests/") or text.startswith("```python\n# tasklab/page.py")
    assert f"def {function.__name__}(" in text and '"""' not in text
    assert "    return" in text and text.endswith("\n```")


def test_order_is_from_the_largest():
    assert page.order(pd.Series({"a": 1.0, "b": 2.0})) == "b 2.0, a 1.0"
