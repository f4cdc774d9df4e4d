"""Two worlds: which statements are confirmed in both, and curves over sets of tasks."""

import dataclasses
import importlib
import itertools
import re

import numpy as np
import pandas as pd
import pytest

from benchmarks.foretelling import foretelling
from tasklab.errors import TasklabError
from tasklab.evidence import figures, records
from tasklab.evidence.figures.forest_plot import LOOKS
from tasklab.evidence.records import intervals, targets
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.papers import printed
from tests.rows import found

NAMES = ("tangent-2-target", "tangent-2-posthoc-target", "closed-4-full", "closed-1-data-sup")
PAIRS = {  # effects in both worlds -> the outcome of both
    (2.0, 3.0): "confirmed",
    (-2.0, -5.0): "not confirmed",
    (2.0, -2.0): "they differ",
    (9.0, 0.5): "open",
}


@pytest.fixture
def worlds():
    return [
        [found(n, pair[i], seeds=2, tasks=2) for n, pair in zip(NAMES, PAIRS, strict=True)]
        for i in (0, 1)
    ]


def test_statements_are_confirmed_in_both_worlds(worlds):
    untested = [Verdict(claim=worlds[0][0].claim), *worlds[1][1:]]
    rows = records.replication(*worlds)
    assert list(rows["both"]) == list(PAIRS.values())
    assert list(rows["same_sign"]) == [True, True, False, True]
    assert list(records.replication(worlds[0], untested)["both"]) == [*PAIRS.values()][1:]
    told = records.counted(rows)
    assert [int(n) for n in re.findall(r"\d+", told)] == [1, 4, 1, 1, 1, 3, 4]
    assert records.counted(rows[:0]) == ""
    assert records.replication(worlds[0], worlds[0]).empty  # of networks of neither world
    narrow = Interval(0.5, 0.4, 0.6)
    general = dataclasses.replace(worlds[1][3], here=narrow, sources=("seeds", "tasks"))
    worlds[1][3] = general
    fixed = records.replication(*worlds, here=True)
    assert list(fixed["both"])[3] == "confirmed" and fixed["low_second"][3] == 0.4
    assert list(records.replication(*worlds)["both"])[3] == "open"


def test_both_worlds_are_drawn_and_told(worlds):
    rows = records.replication(*worlds)
    tangent, closed = figures.replication(rows).axes
    marks = [(line.get_marker(), line.get_xdata()[0]) for line in tangent.lines]
    assert [x for marker, x in marks if marker == "o"] == [2.0, -2.0]
    assert [x for marker, x in marks if marker == "s"] == [3.0, -5.0]
    ends = [line for line in closed.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in ends] == [2.0, 6.0]  # 9 lies beyond the axis
    assert ends[0].get_color() == LOOKS["holds"][0]
    names = [label.get_text() for label in tangent.get_yticklabels()]
    assert names == list(rows["short"][:2])
    settings = rows.iloc[[0, 0, 1]].assign(setting=["chosen", "equal length", "one rate"])
    labels = figures.replication(settings).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [
        names[0], "at equal norm", f"{names[1]} (at one rate)"
    ]  # fmt: skip


def test_curves_average_tasks_within_a_set_and_then_sets():
    common = {"experiment": "merging", "split": "test", "model": "icons_s", "seed": 0, "n": 100}
    sets = {2: {"A+B": [10, 20], "C+D": [30, 80]}, 3: {"A+B+C": [6, 12, 18]}}
    df = pd.DataFrame([
        {**common, "method": method, "merge": "arithmetic", "n_tasks": n, "subset": subset,
         "task": subset.split("+")[i], "metric": metric, "value": value + n * more}
        for method, more in (("nonlinear", 0.0), ("linearized", 2.0))
        for metric in ("absolute", "normalised")
        for n, some in sets.items() for subset, values in some.items()
        for i, value in enumerate(values)
    ])  # fmt: skip
    other = df[df["method"] == "nonlinear"]  # a seed of one method alone changes no gain
    other = other.assign(seed=1, value=other["value"] + 10)
    figure = figures.set_curves(pd.concat([df, other], ignore_index=True))
    drawn = [
        [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 2]
        for axes in figure.axes[:2]
    ]
    expected = [[[40.0, 17.0], [39.0, 18.0]], [[0.0, 0.0], [4.0, 6.0]]]  # above the set's sum
    np.testing.assert_allclose(drawn, expected)


def test_levels_of_a_world_are_means_over_its_tasks():
    common = {"split": "test", "metric": "absolute", "method": "nonlinear", "n_tasks": 2, "n": 100}
    alone = {"experiment": "single", "metric": "single", "n_tasks": None}
    merged = {"arithmetic": (50, 60), "ties": (70, 50), "best_span": (90, 90)}
    values = [
        *({**common, "experiment": "merging", "merge": merge, "value": x}
          for merge, both in merged.items()
          for x in both),
        {**common, "experiment": "merging", "merge": "ties", "n_tasks": 1, "value": 99},
        {**common, "experiment": "joint", "value": 75},
        {**common, **alone, "value": 80},
        {**common, **alone, "method": "pretrained", "value": 30},
    ]  # fmt: skip
    (row,) = figures.worlds_table({"a": pd.DataFrame(values)}).to_dict("records")
    assert row == {"world": "a", "pre-trained": 30, "sum": 55, "best merge": "60.0 (TIES)",
                   "joint training": 75, "one model a task": 80}  # fmt: skip


def crossed(model, shift):
    """Return records of six tasks: pairs err by what their models lack; lengths say nothing."""
    alone = {name: shift + 5.0 * i for i, name in enumerate("ABCDEF")}
    common = {"experiment": "crossing", "split": "test", "model": model, "init": "pretrained"}
    of_task = {"single": alone, "norm": dict.fromkeys("ABCDEF", 0.5)}
    rows = [
        {**common, "method": "nonlinear", "seed": seed, "task": task, "n_tasks": 1,
         "metric": metric, "value": value + seed}
        for seed in (0, 1) for metric, of in of_task.items() for task, value in of.items()
    ]  # fmt: skip
    rows += [
        {**common, "method": "nonlinear", "seed": seed, "task": f"{a}+{b}", "n_tasks": 2,
         "metric": "xi_pair", "value": 100 - (alone[a] + alone[b]) / 2}
        for seed in (0, 1) for a, b in itertools.combinations("ABCDEF", 2)
    ]  # fmt: skip
    start = {"method": "pretrained", "seed": 0, "n_tasks": 1, "metric": "single"}
    rows += [{**common, **start, "task": task, "value": value / 2} for task, value in alone.items()]
    other = [{**row, "method": "linearized", "value": 1.0} for row in rows]
    return pd.DataFrame(rows + other), {name: 10 - i for i, name in enumerate("ABCDEF")}


def test_what_goes_with_the_error_of_pairs_is_told_of_both_worlds(monkeypatch):
    worlds = {
        name: crossed(name, shift) for name, shift in (("synthetic images", 70.0), ("b", 40.0))
    }
    home = importlib.import_module("tasklab.evidence.records.replication")
    ranks = {
        name: foretelling(home.with_properties(*of), "xi_pair", by=())
        for name, of in worlds.items()
    }
    ranks = pd.concat([one.assign(model=name, outcome="xi_pair") for name, one in ranks.items()])
    monkeypatch.setattr(home, "foretold", lambda *_, **__: ranks)
    table = records.properties(*worlds["b"]).set_index("metric")
    assert list(table.index) == ["single", "zero_shot", "classes", "norm"]
    assert list(table["mean"]) == [53.0, 26.25, 7.5, 1.0]  # seed 1 has one point more of each
    assert list(table["value"][:3]) == pytest.approx([-1, -1, 1])
    assert table["value"].isna()["norm"]  # the same for all tasks
    assert (table["p_holm"][:3] < 0.05).all()
    worlds["real drawings"] = worlds.pop("b")
    shown = figures.properties_table(worlds)
    assert list(shown["synthetic images"][:3]) == ["83.0", "41.2", "7.50"]
    assert shown["real drawings: correlation with ξ"][0] == "−1.00 [−1.00, −1.00]*"
    (axes,) = figures.errors_by_accuracy(worlds).axes
    dots = np.concatenate([dot.get_offsets() for dot in axes.collections])
    assert len(dots) == 30
    assert dots.sum(1).tolist() == pytest.approx([100.5] * 30)  # each the mean of both seeds


SETS = {  # TIES above the sum, by seed and set; each set's two tasks have one point more and less
    (0, "A+B"): 2.0, (0, "A+C"): 3.0, (0, "B+C"): 7.0,
    (1, "A+B"): 3.0, (1, "A+C"): 4.0, (1, "B+C"): 8.0,
}  # fmt: skip


def of_sets(seeds=(0, 1)):
    common = {"experiment": "merging", "split": "test", "model": "icons_s", "init": "pretrained",
              "suite": "icons", "method": "nonlinear", "metric": "absolute", "n": 100}  # fmt: skip
    return pd.DataFrame([
        {**common, "seed": seed, "subset": subset, "task": task, "merge": merge, "n_tasks": n,
         "value": 40.0 + (merge == "ties") * (gain + more) * (n == 2)}
        for (seed, subset), gain in SETS.items() if seed in seeds
        for task, more in zip(subset.split("+"), (1.0, -1.0), strict=True)
        for merge in ("arithmetic", "ties") for n in (2, 3)
    ])  # fmt: skip


def test_over_sets_the_set_is_the_unit():
    (one,) = records.over_sets(of_sets(), model="icons_s", n_tasks=2)
    assert one.claim.id == "merging-ties"
    assert one.by_seed == {0: 4.0, 1: 5.0} and one.by_task == {"A+B": 2.5, "A+C": 3.5, "B+C": 7.5}
    rows = of_sets()
    rows = rows[rows["n_tasks"] == 2].set_index(["seed", "task", "subset", "merge"])["value"]
    table = (rows.unstack()["ties"] - rows.unstack()["arithmetic"]).rename("difference")
    given = {of: targets.sources(table.reset_index(), of) for of in (targets.SETS, targets.TASKS)}
    assert one.here == pytest.approx(intervals.interval(4.5, given[targets.SETS]))
    assert one.interval == pytest.approx(intervals.interval(4.5, given[targets.TASKS]))
    assert one.p == pytest.approx(intervals.p_value(4.5, given[targets.TASKS]))
    assert (one.outcome, one.on_these_tasks.outcome) == ("undecided", "undecided")
    assert one.sources == ("seeds", "tasks")
    assert records.over_sets(of_sets((0,)), model="icons_s", n_tasks=2) == []  # one seed
    sums = of_sets().assign(merge="arithmetic", method=lambda df: [
        "linearized" if merge == "ties" else "nonlinear" for merge in of_sets()["merge"]
    ])  # fmt: skip
    same = records.over_sets(sums, model="icons_s", n_tasks=2)
    assert {v.claim.id for v in same} == {"tangent-1-absolute", "linear-1-linearized-absolute"}
    assert {v.interval for v in same} == {one.interval}


def test_gains_over_sets_are_about_other_tasks():
    (row,) = (
        records.set_gains(of_sets(), ("nonlinear", "ties")).query("n_tasks == 2").to_dict("records")
    )
    (one,) = records.over_sets(of_sets(), model="icons_s", n_tasks=2)
    assert (row["sets"], row["seeds"], row["effect"]) == (3, 2, 4.5)
    assert (row["low"], row["high"]) == pytest.approx(one.interval[1:], nan_ok=True)
    with pytest.raises(TasklabError, match="'tie'"):
        records.set_gains(of_sets(), ("nonlinear", "tie"))


def test_each_scope_of_a_claim_is_a_column():
    (one,) = records.over_sets(of_sets(), model="icons_s", n_tasks=2)
    cell = found("tangent-1-absolute", 2.0, seeds=2, tasks=2)
    table = figures.side_by_side({"eight": [cell, one], "sets": [cell, one.on_these_tasks]})
    assert list(table["statement"]) == [
        f"{cell.claim.short} (accuracy of the sum)", one.claim.short
    ]  # fmt: skip
    assert list(table["sets"])[0] == "confirmed: +2.0 points (1.0 to 3.0 over seeds)"
    assert table["eight"][1].startswith("open: +") and table["eight"][1] != table["sets"][1]


def test_printed_effects_stand_beside_those_of_the_worlds():
    claim = BY_ID["tangent-2-target"]  # 10.9 % after negation, where non-linear has 24.0
    assert printed(claim)["vitb32"] == pytest.approx(24.0 - 10.9)
    assert printed(BY_ID["ctl-4.1-vit"]) == {}
    grown = found("tangent-growth-target", 1.0, seeds=2, tasks=2)
    first = [found("tangent-2-target", 2.0, seeds=2, tasks=2), grown]
    other = [found("tangent-1-absolute", 1.0, seeds=2, tasks=2)]
    rows = figures.beside_printed({"ours": first, "other": other})
    row, _ = figures.tabulate(rows, "statement", "column").to_dict("records")
    assert (row["ours"], row["other"]) == ("+2.0 (1.0 to 3.0)", "–")
    assert row["ViT-B/32, printed"] == "+13.1" and row["statement"] == claim.short


def test_the_headlines_of_each_world_are_drawn_above_what_clip_has():
    first = [found("tangent-2-target", 2.0, seeds=2, tasks=2)]
    second = [found("tangent-2-target", 90.0, seeds=2, tasks=2)]  # beyond the axis
    left_out = [found("ctl-4.1-vit", 1.0, seeds=2, tasks=2)]  # no paper prints it
    worlds = {"synthetic images": [*first, *left_out], "texts": second}
    (axes,) = figures.headline_effects(worlds).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [first[0].claim.short]
    marks = {line.get_marker(): line for line in axes.lines if line.get_marker() != "None"}
    sizes = ("vitb32", "vitb16", "vitl14")
    assert [*marks["x"].get_xdata()] == [printed(first[0].claim)[size] for size in sizes]
    assert marks["o"].get_xdata()[0] == 2.0 and marks["D"].get_xdata()[0] == 25.0
    assert ">" in marks and marks["o"].get_ydata()[0] < marks["D"].get_ydata()[0]
    assert marks["D"].get_ydata()[0] < marks["x"].get_ydata()[0]
    with pytest.raises(TasklabError, match="no headline"):
        figures.headline_effects({"synthetic images": left_out})


def test_models_of_several_worlds_stand_side_by_side():
    base = {"model": "a", "init": "pretrained", "split": "test", "task": "x", "seed": 0, "n": 10}
    values = [
        ("single", "single", "pretrained", {}, 40), ("single", "single", "nonlinear", {}, 90),
        ("addition", "absolute", "nonlinear", {"n_tasks": 8}, 60),
        ("addition", "absolute", "nonlinear", {"n_tasks": 2}, 1),
        ("addition", "absolute", "attention", {"n_tasks": 8}, 57),
        ("merging", "absolute", "nonlinear", {"n_tasks": 8, "merge": "arithmetic"}, 61),
        ("merging", "absolute", "nonlinear", {"n_tasks": 8, "merge": "tsv_m"}, 68),
        ("search_box", "xi_classifier_box", "nonlinear", {}, 30),
        ("search_box", "xi_classifier_box", "linearized", {}, 99),
    ]  # fmt: skip
    rows = [
        {**base, "experiment": e, "metric": m, "method": way, "value": x, **more}
        for e, m, way, more, x in values
    ]
    df = pd.DataFrame([*rows, *({**row, "model": "b", "value": row["value"] + 1} for row in rows)])
    models = records.of_models(df)
    one = models.loc["a", ["zero_shot", "single", "sum", "attention", "tsv_m", "xi"]]
    assert one.tolist() == [40, 90, 60, -3, 7, 30]
    assert np.isnan(models.loc["a", "ties"])


def test_headlines_that_a_second_world_decides_alike_are_counted():
    names = ("tangent-2-target", "linear-fig3-equal", "tangent-1-posthoc-normalised")
    effects = {"first": (2.0, 0.2, -3.0), "second": (5.0, 0.2, 0.5), "own": (None, 0.1, -4.0)}
    worlds = {
        world: [found(n, x, seeds=2) for n, x in zip(names, own, strict=True) if x is not None]
        for world, own in effects.items()
    }
    within = [
        dataclasses.replace(worlds[w][i], outcome="holds") for w, i in (("first", 1), ("own", 0))
    ]
    worlds["first"][1], worlds["own"][0] = within
    alone = found("ctl-growth-distance", 2.0, seeds=2)
    told = records.in_common([*worlds["first"], alone], worlds["second"], worlds["own"])
    assert told.startswith("**Synthetic images decide 4 of 4 headlines, and 4 with the tasks held")
    assert (
        "fixed. Of the 3 that real drawings can answer, 1 come out alike there, and 2 more" in told
    )
    assert "teams.** The other 1 compare" in told
    assert "Alike: *Linearized vectors forget better*; without the shift of test drawings" in told
    assert told.endswith(
        "also *Attention-only matches full fine-tuning*, *Post-hoc linearization lies between*."
    )
    told = records.in_common(worlds["first"], worlds["second"])
    last = "*Post-hoc linearization lies between* (not confirmed on synthetic images, open on "
    last += "drawings)"
    assert "Of the 3 " in told and "1 come out alike there.**" in told
    assert told.endswith(f"; {last}.")
    assert list(records.decided(worlds["second"])) == ["holds", "undecided", "undecided"]


def test_statements_are_judged_on_validation_images_that_others_chose_for():
    rows, gains = [], {"nonlinear": 0.0, "linearized": 5.0, "posthoc": -1.0}
    common = {"experiment": "two_fold", "model": "icons_s", "suite": "icons", "n": 100}
    for method, seed, task in itertools.product(gains, range(3), "ABCD"):
        wobble = 0.1 * seed + 0.2 * "ABCD".index(task) * (method == "linearized")
        own = common | {"method": method, "seed": seed, "task": task, "split": "validation"}
        added = own | {"metric": "absolute", "n_tasks": 8, "value": 60 + gains[method] + wobble}
        rows += [own | {"metric": "single", "value": 80.0}, added]
        rows += [own | {"metric": "target", "value": 30 - gains[method] + 0.1 * wobble}]
        if method == "nonlinear":
            rows += [added | {"merge": name, "value": added["value"] + more + 0.01 * seed}
                     for name, more in (("arithmetic", 0.0), ("ties", 3.0))]  # fmt: skip
    judged = records.on_validation(records.tidy(rows), model="icons_s")
    effects = {one.claim.id: one.interval for one in judged}
    assert effects["tangent-1-absolute"].effect == pytest.approx(5.3)
    assert effects["tangent-1-normalised"].effect == pytest.approx(5.3 / 0.8)
    assert effects["tangent-1-posthoc-normalised"].effect == pytest.approx(-1 / 0.8)
    assert effects["tangent-2-target"].effect == pytest.approx(5 - 0.03)
    assert effects["merging-ties"].effect == pytest.approx(3.0)
    tasks = 60 + 5 + 0.2 * np.arange(4) - 60
    half = intervals.of_mean(tasks)
    assert effects["tangent-1-absolute"] == pytest.approx(half)
    assert not effects.keys() & {"linear-1-absolute-nonlinear", "merging-tsv-arithmetic"}
