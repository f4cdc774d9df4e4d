"""Figures of merges: what is drawn is what is recorded or printed, and nothing of nothing."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from tasklab.analyses.merging import METHODS
from tasklab.bench.merges import MERGES
from tasklab.bench.minima import MINIMA
from tasklab.evidence import figures
from tasklab.evidence.figures import merging
from tasklab.evidence.figures.style import NothingToDrawError
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict, gains
from tasklab.evidence.records.table import combine, nothing, tidy
from tests.rows import row

TASKS = ("Signs", "Places")
VALUES = {name: 50.0 + 2 * i for i, name in enumerate(MERGES)}


def synthetic(seeds=(0,), numbers=(2, 8), merges=MERGES, **more):
    rows = [row("single", "single", 40.0, method="pretrained", task=task) for task in TASKS]
    for seed in seeds:
        rows += [row("single", "single", 95.0, seed=seed, task=task, **more) for task in TASKS]
        for name in merges:
            for n in numbers:
                common = {"seed": seed, "n_tasks": n, "merge": name, "trials": 12, **more}
                value = VALUES[name] + seed - (n == 8)
                for task in TASKS:
                    rows.append(row("merging", "absolute", value, task=task, **common))
                    rows.append(row("merging", "normalised", value + 3, task=task, **common))
                told = {"task": "all", "split": "validation", **common}
                rows.append(row("merging", "objective", 1 - VALUES[name] / 100, **told))
    return tidy(rows)


def drawn(axes):
    return [
        [float(x) for x in line.get_xdata()]
        for line in axes.lines
        if line.get_markersize() == 6 and len(line.get_xdata()) > 1
    ]


def one_by_one(axes):
    points = [
        (float(y), float(x))
        for line in axes.lines
        if line.get_markersize() == 6
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    return [x for _, x in sorted(points) if x == x]


def test_accuracy_has_a_line_a_merge():
    minima = {"best_span", "best", "best_loss", *MINIMA}
    assert set(merging.MERGE_LABEL) == {*METHODS, *minima}
    for name, method in METHODS.items():
        assert merging.MERGE_LABEL[name] == method.title
    assert merging.merges_in(synthetic()) == list(MERGES)
    assert merging.merges_in(nothing()) == []
    df = synthetic(seeds=(0, 1))
    absolute, normalised = figures.merge_accuracy(df).axes
    two, eight = drawn(absolute)
    best_first = list(reversed(MERGES))  # with eight tasks
    assert two == pytest.approx([VALUES[name] + 0.5 for name in best_first])
    assert eight == pytest.approx([value - 1 for value in two])
    assert drawn(normalised)[0] == pytest.approx([value + 3 for value in two])
    upright = [line.get_xdata()[0] for line in absolute.lines if len(set(line.get_xdata())) == 1]
    assert {40.0, 95.0} <= set(upright)
    labels = [text.get_text() for text in absolute.get_yticklabels()]
    assert labels == [merging.MERGE_LABEL[name] for name in best_first]
    assert not absolute.texts and absolute.get_xlim()[0] < 40


def test_bounds_distances_and_arrows():
    df = synthetic()
    collapsed = df["merge"].eq("wudi") & df["n_tasks"].eq(2) & df["metric"].eq("absolute")
    absolute, normalised = figures.merge_accuracy(df.assign(
        value=df["value"].mask(collapsed, 7.0))).axes  # fmt: skip
    (arrow,) = absolute.texts
    labels = [text.get_text() for text in absolute.get_yticklabels()]
    assert arrow.get_text() == "7.0" and round(arrow.xy[1]) == labels.index("WUDI")
    low, _ = absolute.get_xlim()
    assert 7 < low == arrow.xy[0] < 40  # the pre-trained model is in sight
    assert not normalised.texts
    near, gap = figures.merge_distance(synthetic(seeds=(0, 1))).axes
    labels = [text.get_text() for text in near.get_yticklabels()]
    assert labels == [merging.MERGE_LABEL[name] for name in reversed(MERGES)]
    found = one_by_one(near)
    assert found == pytest.approx(sorted(1 - value / 100 for value in VALUES.values()))
    points = one_by_one(gap)  # the least loss, the best on the span
    assert points[:2] == pytest.approx([2.0, 0.0])
    with pytest.raises(NothingToDrawError, match="on the span"):
        figures.merge_distance(synthetic(merges=("ties",)))
    axes = figures.merge_ranking(combine(synthetic(seeds=(0, 1)), joint_training())).axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    bounds = [labels[0], labels[1], labels[-1]]
    assert bounds == ["one model a task", "joint training", "pre-trained model"]
    assert labels[2:-1] == [merging.MERGE_LABEL[name] for name in reversed(MERGES)]
    found = one_by_one(axes)
    assert found[:3] == pytest.approx([95.0, 91.0, max(VALUES.values()) - 0.5])
    assert found[-1] == 40.0


def gains_table(df):
    return figures.tabulate(figures.gains_by_sample(df), ["merge", "sample"], "n_tasks")


def test_gains_are_told_with_their_intervals_for_every_number_of_tasks():
    df = synthetic(seeds=(0, 1), merges=("average", "arithmetic", "ties"))
    table = gains_table(df)
    assert table.columns.tolist() == ["merge", "sample", 2, 8]
    labels = [merging.MERGE_LABEL[name] for name in merging.merges_in(df) if name != "arithmetic"]
    assert table["merge"].tolist() == labels
    row = gains(df).set_index(["n_tasks", "merge"]).loc[(8, "ties")]
    assert row["effect"] == VALUES["ties"] - VALUES["arithmetic"] and row["low"] < 0
    expected = f"{row['effect']:+.1f} ({row['low']:.1f} to {row['high']:.1f})".replace("-", "−")
    assert table.set_index("merge").loc["TIES", 8] == expected
    others = [synthetic(numbers=(8,), model=f"mini_s_seed{i}") for i in range(2)]
    others = [one[one["experiment"] == "merging"] for one in others]
    table = gains_table(tidy(pd.concat([df, *others])))
    assert table.columns.tolist() == ["merge", "sample", 2, 8]  # nothing is made for a few
    both = table[table["merge"] == "Average"]
    assert both["sample"].tolist() == ["here", "others"]
    assert both.iloc[1].tolist()[2:] == ["–", "−2.0"]
    assert gains_table(nothing()).empty


def test_ways_are_columns_of_gains():
    df = synthetic()
    linear = synthetic().assign(method="linearized")
    linear = linear[linear["experiment"] == "merging"]
    other = synthetic(model="mini_few").query("model == 'mini_few'")
    every = tidy(pd.concat([df, linear, other]))
    means = figures.merged_accuracy(figures.most_tasks(every))
    table = figures.tabulate(means, "way", "merge", named=False)
    assert list(table.index) == ["non-linear", "linearized", "supervised, fewer classes"]
    assert table["ties"].tolist() == pytest.approx([VALUES["ties"] - 1] * 3)
    assert list(table) == merging.merges_in(every)
    axes = figures.merge_ways(every).axes[0]
    words = [text.get_text() for text in axes.texts]
    first = next(name for name in MERGES if name != "arithmetic")
    gain = f"{VALUES[first] - VALUES['arithmetic']:+.1f}".replace("-", "−")
    assert words[:3] == [gain] * 3 and len(words) == 3 * (len(MERGES) - 1)
    heads = [text.get_text() for text in axes.get_xticklabels()]
    base = f"{VALUES['arithmetic'] - 1:.1f} %"
    assert heads == [f"{name}: {base}" for name in table.index]  # slanted
    two = figures.merge_ways(tidy(pd.concat([df, linear]))).axes[0]
    assert [text.get_text() for text in two.get_xticklabels()] == [
        f"non-linear\n{base}", f"linearized\n{base}"]  # fmt: skip


def joint_training():
    return tidy(
        row("joint", "absolute", 90.0 + 2 * seed, task=task, n_tasks=8, seed=seed)
        for task in TASKS for seed in (0, 1)
    )  # fmt: skip


def test_gains_and_curves_of_pre_trainings():
    df = synthetic(seeds=(0, 1), merges=("arithmetic", "ties", "tsv_m"))
    others = [synthetic(numbers=(8,), model=f"mini_s_seed{i}") for i in range(2)]
    others = [one[one["experiment"] == "merging"] for one in others]
    axes = figures.merge_gains(tidy(pd.concat([df, *others]))).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["TSV-M", "TIES"]
    gain = {name: VALUES[name] - VALUES["arithmetic"] for name in ("tsv_m", "ties")}
    here, there = drawn(axes)
    assert here == there == pytest.approx(list(gain.values()))
    axes = figures.merge_curves(synthetic(merges=("arithmetic", "ties", "pcb"))).axes[0]
    lines = {len(line.get_xdata()): line for line in axes.lines if line.get_marker() == "s"}
    assert lines[2].get_xdata().tolist() == [2, 8]
    assert lines[2].get_ydata().tolist() == [VALUES["ties"], VALUES["ties"] - 1]
    assert not axes.texts
    far = synthetic(merges=("arithmetic", "ties", "tsv_m"))
    far.loc[(far["merge"] == "ties") & (far["metric"] == "absolute"), "value"] = 10.0
    axes = figures.merge_curves(far).axes[0]
    assert [text.get_text() for text in axes.texts] == ["TIES: 10 %"] * 2
    assert axes.get_ylim()[0] > 10  # the line leaves the panel
    rates = [
        row("merging_rates", metric, value + 1e4 * lr, n_tasks=n, merge=merge, lr=lr)
        for lr in (1e-4, 2e-4)
        for metric, value, n, merge in (("single", 90.0, 1, None), ("absolute", 70.0, 8, "ties"))
    ]
    (axes,) = figures.merge_curves(tidy(rates)).axes
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed[0].get_xydata().ravel().tolist() == pytest.approx([1, 91, 2, 92])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2"]
    claim = BY_ID["merging-wudi-ties"]
    found = Verdict(claim=claim, interval=Interval(2.0, 1.0, 3.0), n_pretrainings=3,
                    pretrainings=Interval(1.5, -1.0, 4.0))  # fmt: skip
    table = figures.pretraining_table([found, Verdict(claim=claim)])
    assert table.iloc[0].tolist() == [
        f"{claim.short}: above TIES", 2.0, 1.0, 3.0, 1.5, -1.0, 4.0, 3]  # fmt: skip
    assert figures.pretraining_table([]).empty


def test_published_numbers_are_in_the_table_and_in_the_figure():
    def beside(df, *size):
        return figures.tabulate(figures.beside_published(df, *size), "merge", "protocol")

    table = beside(synthetic(seeds=(0, 1))).set_index("merge")
    assert table.index[0] == "one model a task" and table["here"].iloc[0] == 95.0
    assert table.loc["WUDI", "task_vectors"] == 85.2
    assert table.loc["Iso-C", "FusionBench"] == 82.8
    assert table.loc["TIES", "here"] == VALUES["ties"] - 0.5
    large = beside(synthetic(), "vitl14").set_index("merge")
    assert large.loc["TSV-M", "TALL, TSV"] == 93.0
    assert "here" not in beside(nothing()) and "TALL, TSV" in beside(nothing())
    above = beside(combine(synthetic(seeds=(0, 1)), joint_training()))
    assert above["merge"].tolist()[:2] == ["one model a task", "joint training"]
    assert above["here"][1] == 91.0
    panels = figures.published_merges(here=synthetic()).axes
    assert [axes.get_title() for axes in panels] == ["here", "ViT-B/32", "ViT-L/14"]
    assert len(figures.published_merges().axes) == 2
    assert len(figures.published_merges(here=nothing()).axes) == 2


def test_several_tables_are_awaited_together():
    drawn = figures.book_figure(lambda *_: plt.figure())
    assert drawn([("first", nothing()), ("second", nothing())]) is None
    others = ([("first", nothing()), ("second", synthetic())], [], "word", None, [("first",)])
    assert all(drawn(one) is not None for one in others)
    told = figures.table(pd.DataFrame(columns=["merge", "seconds"])).to_html()
    assert "Not recorded yet." in told and "seconds" not in told
