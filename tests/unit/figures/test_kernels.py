"""Figures of tangent kernels: the right marks from synthetic rows, readable text, no leftovers."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from tasklab.analyses import ring
from tasklab.evidence.figures import kernels
from tasklab.evidence.figures.style import WIDTH
from tests.helpers import refuses
from tests.rows import crossed

PAIRS = ("Places|Vehicles", "Textures|Scenes")


def energies(inits=("pretrained", "random"), pairs=PAIRS, classes=("a", "b")):
    levels = {"task": 0.8, "control": 0.2}
    df = crossed(init=inits, task=pairs, subset=classes, side=levels, x=range(6))
    level = df["side"].map(levels).where(df["init"] == "pretrained", 0.5)
    value = level + 0.01 * (df["x"] * 7 % 6 - 2.5) + 0.02 * (df["subset"] == "b")
    return df.assign(model="mini", metric="energy", value=value)


def test_localization_has_a_panel_for_each_pair_and_initialisation():
    figure = kernels.localization(energies())
    assert len(figure.axes) == 4 and figure.get_figwidth() == WIDTH
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [pair.replace("|", ",\n") for pair in PAIRS] * 2
    shares = [axes.texts[0].get_text() for axes in figure.axes]
    task, control = (0.82 / (0.82 + 0.22), 0.80 / (0.80 + 0.20))
    mean, spread = np.mean([task, control]), np.std([task, control], ddof=1)
    assert shares[:2] == [f"share {mean:.2f} ± {spread:.2f}"] * 2
    assert shares[2:] == ["share 0.50 ± 0.00"] * 2
    assert "pre-trained" in figure.axes[0].get_ylabel()
    assert "random" in figure.axes[2].get_ylabel()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["task", "second task"]
    for axes in figure.axes:
        assert axes.get_ylim()[1] < 1.25 * 0.845  # of the highest energy
        assert axes.get_yticks().tolist() == [0, 0.25, 0.5, 0.75]
        assert axes.get_xlim() == (-0.5, 11.5)
        assert axes.get_xlabel() == "12 images"
    assert not plt.get_fignums()


def test_lines_are_the_classes_and_means_count():
    figure = kernels.localization(energies(inits=["pretrained"], pairs=PAIRS[:1]))
    (axes,) = figure.axes
    lines = axes.get_lines()
    assert len(lines) == 2 * (2 + 1)  # sides times (classes and mean)
    for colour, start in (("#0072b2", 0), ("#d55e00", 6)):
        side = [line for line in lines if to_hex(line.get_color()) == colour]
        a, b, mean = (line.get_ydata() for line in side)
        np.testing.assert_allclose((a + b) / 2, mean)
        assert (np.diff(mean) < 0).all()
        assert list(side[2].get_xdata()) == list(range(start, start + 6))
        assert side[2].get_linewidth() > 2 * side[0].get_linewidth()
    figure = kernels.localization(energies(classes=["a"], inits=["random"]))
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["share 0.50"] * 2
    df = energies(inits=["pretrained"], pairs=PAIRS[:1])
    flat = df.assign(value=0.5)
    flat = flat[(flat["side"] == "task") | (flat["x"] < 2)]
    assert kernels.localization(flat).axes[0].texts[0].get_text() == "share 0.50 ± 0.00"
    refuses("'energy'", lambda: kernels.localization(energies().assign(metric="share")))
    refuses("ring or block", lambda: kernels.ring(ring.table(20).assign(kernel="other")))


def test_unseen_share_stands_beside_and_other_sides_are_not_drawn():
    df = energies(inits=["pretrained"], pairs=PAIRS[:1], classes=["a"])
    unseen = df[df["side"] == "task"].assign(side="unseen")
    share = unseen[:2].assign(metric="unseen_share", value=[0.6, 0.7], side="")
    (axes,) = kernels.localization(pd.concat([df, unseen, share])).axes
    assert axes.texts[0].get_text() == "share 0.80\nunseen 0.65"
    assert len(axes.get_lines()) == 4 and axes.get_xlabel() == "12 images"


def test_ring_shows_errors_fits_and_eigenfunctions():
    df = ring.table(points=60, count=3)
    figure = kernels.ring(df)
    assert len(figure.axes) == 6 and not plt.get_fignums()
    by_kernel = {"ring": figure.axes[::2], "block": figure.axes[1::2]}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["task's function", "learnt on D₁", "learnt on D₂", "sum of both"]
    for kernel, (functions, fits, bars) in by_kernel.items():
        assert len(functions.get_lines()) == 3
        for axes, other in zip((functions, fits, bars), by_kernel["ring"], strict=True):
            assert axes.get_ylim() == other.get_ylim() and axes.get_xlim() == other.get_xlim()
        for axes in (functions, fits):
            low, high = axes.get_ylim()
            for line in axes.get_lines():
                assert low < np.min(line.get_ydata()) and np.max(line.get_ydata()) < high
        shown = [bar.get_width() for drawn in bars.containers for bar in drawn]
        errors = df[df["kernel"] == kernel].set_index(["metric", "subset"])["value"]
        keys = [(metric, task) for metric in ("alone", "added") for task in "12"]
        np.testing.assert_allclose(shown, [errors[key] for key in keys])
        assert bars.get_xlim()[1] > max(shown) + 5  # room for the number
    assert [bool(panels[2].get_legend()) for panels in by_kernel.values()] == [False, True]
