"""Figures of costs: the right lines and bars, readable text, and no leftovers in pyplot."""

import itertools

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from tasklab.errors import TasklabError
from tasklab.figures import cost

TIMES = {"standard": 1.0, "ours": 1.6, "listing": 2.2, "cached": 0.01}
PARADIGMS = ("attention", "attention_bias", "attention_mlp", "attention_mlp_bias")
METHOD = {"standard": "nonlinear", **dict.fromkeys(("ours", "listing", "cached"), "linearized")}


def table():
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


def test_the_figure_is_readable(readable):
    readable(cost.linearization_cost(table()))


def lines(axes):
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


def test_nothing_to_draw():
    df = table()
    with pytest.raises(TasklabError, match="measure 'standard'"):
        cost.linearization_cost(df[df["variant"] != "standard"])
    with pytest.raises(TasklabError, match="a linearized variant"):
        cost.linearization_cost(df[df["variant"].isin(["standard", "attention"])])
