"""Figures of costs: the right lines and bars, readable text, and no leftovers in pyplot."""

from __future__ import annotations

import itertools

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb

from tasklab.errors import TasklabError
from tasklab.figures import cost
from tasklab.figures.style import COLOURS, METHOD_LABEL

TIMES = {"standard": 1.0, "ours": 1.6, "listing": 2.2, "cached": 0.01}
PARADIGMS = ("attention", "attention_bias", "attention_mlp", "attention_mlp_bias")
METHOD = {"standard": "nonlinear", **dict.fromkeys(("ours", "listing", "cached"), "linearized")}


def table() -> pd.DataFrame:
    rows = []
    for what, batch, variant in itertools.product(
        ("training", "inference"), (16, 64, 256), (*TIMES, *PARADIGMS)
    ):
        if variant == {"training": "cached"}.get(what) or (what, variant[:3]) == (
            "inference",
            "att",
        ):
            continue
        ratio = TIMES.get(variant, 0.8)
        values = {
            "seconds": ratio * batch / 1000,
            "time_ratio": ratio + 0.05,  # not the ratio of the medians
            "peak_memory": batch * {"ours": 1.1, "listing": 1.5}.get(variant, 1.0),
            "step_memory": batch / 2,
            "flops": batch * {"standard": 3.0, "ours": 5.0}.get(variant, 5.1),
            "trainable": 1e6 * ratio,
            "stored_bytes": 4e6 * ratio,
        }
        for metric, value in values.items():
            where = {"what": what, "batch_size": batch, "variant": variant, "metric": metric}
            spread = {"value": value, "low": 0.9 * value, "high": 1.1 * value}
            rows.append({"method": METHOD.get(variant, variant), **where, **spread})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("draw", [cost.linearization_cost, cost.paradigm_cost])
def test_figures_are_readable(draw, readable):
    readable(draw(table()))


def lines(axes):
    """Return the curves that are drawn, by their colour."""
    return {to_hex(x.get_color()): [*map(list, x.get_data())] for x in axes.lines[::-1]}


def test_lines_are_ratios():
    figure = cost.linearization_cost(table())
    training, memory, inference, _ = figure.axes
    sizes = [16, 64, 256]
    ours, listing, cached = (to_hex(cost._VARIANTS[v][1]) for v in ("ours", "listing", "cached"))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:3] == ["here", "paper's listing", "cached features"]
    assert lines(training)[ours] == [sizes, pytest.approx([1.65] * 3)]  # as measured in rounds
    assert lines(training)[listing] == [sizes, pytest.approx([2.25] * 3)]
    assert cached not in lines(training)
    assert lines(inference)[cached] == [sizes, pytest.approx([0.06] * 3)]
    assert lines(memory)[ours] == [sizes, pytest.approx([1.1] * 3)]
    assert lines(training)["#000000"] == [sizes, pytest.approx([5 / 3] * 3)]  # matrix products
    claims = [[p.get_y() + p.get_height() / 2 for p in axes.patches] for axes in figure.axes]
    assert claims == [[pytest.approx(2)], [pytest.approx(2)], [pytest.approx(2.5)], []]
    whiskers = np.concatenate([np.asarray(c.get_segments()) for c in training.collections])
    assert [1.1 * 1.65] == pytest.approx([max(w[1, 1] for w in whiskers if w[0, 1] < 1.7)])
    for axes in figure.axes:  # nothing is cut off
        tops = [max(x.get_ydata()) for x in axes.lines if len(x.get_ydata())]
        assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > max(tops)
    assert training.get_ylim()[1] > 1.1 * 2.25  # the end of the whiskers


def test_one_run_is_enough():
    df = table()
    figure = cost.linearization_cost(df[df["what"] == "inference"])
    assert [axes.get_title() for axes in figure.axes] == [
        "inference: time",
        "inference: peak memory",
    ]


@pytest.mark.parametrize(("batch", "drawn"), [(None, 256), (16, 16)])
def test_bars_are_the_values(batch, drawn):
    figure = cost.paradigm_cost(table(), batch)
    time, memory, trained, stored = figure.axes
    labels = [t.get_text() for t in time.get_yticklabels()]
    assert labels[0] == METHOD_LABEL["nonlinear"] and len(labels) == 3 + len(PARADIGMS)
    bars = dict(zip(labels, [p.get_width() for p in time.patches], strict=True))
    assert bars["linearized"] == pytest.approx(1.6 * drawn)  # ms
    assert bars["linearized, listing 1"] == pytest.approx(2.2 * drawn)
    assert time.patches[labels.index("linearized")].get_facecolor()[:3] == to_rgb(
        COLOURS["linearized"]
    )
    whole, held = memory.patches[: len(labels)], memory.patches[len(labels) :]
    at = labels.index("linearized")
    assert whole[at].get_width() == pytest.approx(1.1 * drawn)
    assert held[at].get_width() == pytest.approx(0.6 * drawn)
    assert trained.patches[0].get_width() == pytest.approx(1.0)
    assert stored.patches[0].get_width() == pytest.approx(4.0)
    notes = [t.get_text().strip() for t in time.texts]
    assert notes[at].endswith("(1.65×)") and notes[0].endswith("(1.05×)")
    assert memory.texts[at].get_text().endswith("(1.10×)")


def test_bars_without_a_reference_have_no_ratio():
    df = table()
    df = df[(df["variant"] != "standard") & (df["metric"] != "time_ratio")]
    assert not any("×" in t.get_text() for axes in cost.paradigm_cost(df).axes for t in axes.texts)


def test_nothing_to_draw():
    df = table()
    with pytest.raises(TasklabError, match="measure 'standard'"):
        cost.linearization_cost(df[df["variant"] != "standard"])
    with pytest.raises(TasklabError, match="a linearized variant"):
        cost.linearization_cost(df[df["variant"].isin(["standard", "attention"])])
    with pytest.raises(TasklabError, match="at batch 17"):
        cost.paradigm_cost(df, 17)
    with pytest.raises(TasklabError, match="no training step"):
        cost.paradigm_cost(df[df["what"] == "inference"])
