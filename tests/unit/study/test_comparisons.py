"""What papers claim, as two sides of one metric."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from tasklab.evidence.declared.cross_task import THRESHOLDS
from tasklab.evidence.experiments import varied
from tasklab.evidence.experiments.small_networks import setting, task_names
from tasklab.evidence.records import images, judgement, pairing, statements
from tasklab.evidence.records import table as records_table
from tasklab.evidence.records.claims import BY_ID as CLAIMS
from tasklab.evidence.records.schema import COMPARISONS
from tasklab.evidence.study import results
from tasklab.tuning.methods import TABLE
from tests.helpers import refuses

COMMON = {"model": "mini", "method": "nonlinear", "seed": 0}


def linearity(experiment, model, blocks, **more):
    values = {"distance": 0.01, "endpoint": 0.05, "first": 0.3, "coef": 0.97}
    common = COMMON | {"experiment": experiment, "model": model, "task": "a+b", "alpha": 0.5}
    return [
        common | {"seed": seed, "block": block, "metric": metric, "value": value + 0.001 * seed,
                  "split": "test", **more}
        for seed in (0, 1) for block in blocks for metric, value in values.items()
    ]  # fmt: skip


@pytest.fixture
def records():
    scratch = {"pretraining": 10, "finetuning": 10, "replaced": "other", "ratio": 0.0}
    rows = linearity("ctl", "mini", (0, 1, None)) + linearity("ctl_average", "mini", (0, None))
    for k, alpha, more in ((2, 0.2, 0.0), (4, 0.2, 0.1), (8, 0.2, 0.9), (4, 0.1, 0.9)):
        for row in linearity("ctl_sum", "mini", (0, None), n_tasks=k):
            rows.append(row | {"alpha": alpha, "value": row["value"] + more})
    rows += linearity("ctl", "mlp", (0, 1, 2), **scratch)
    for row in linearity("ctl", "mlp", (0, 1, 2), **scratch | {"ratio": 1.0}):
        rows.append(row | {"value": 9.0})
    for group, value in (("m | k", 60.0), ("m | l", 62.0), ("k | l", 61.0)):
        for metric, more in (("averaged", 1.0), ("ensemble", 2.0)):
            row = COMMON | {"experiment": "averaging", "task": "a", "subset": group}
            rows.append(row | {"metric": metric, "value": value + more})
    for model, value in (("k", 57.0), ("l", 59.0), ("m", 58.0)):
        rows.append(rows[-1] | {"metric": "alone", "subset": model, "value": value})
    for task, values in (("a", (20.0, 50.0, 90.0)), ("b", (95.0, 60.0, 30.0))):
        for alpha, value in zip((0.0, 0.5, 1.0), values, strict=True):
            row = COMMON | {"experiment": "segment", "model": "resnet18", "metric": "accuracy"}
            rows.append(row | {"task": task, "subset": "a+b", "alpha": alpha, "value": value})
    rows += stitched()
    table = pd.DataFrame(rows).astype({"block": "Int64"})
    return table.assign(suite="mini", init="pretrained", split="test").fillna({"subset": ""})


def stitched():
    common = COMMON | {"metric": "stitched", "block": 4, "n": 500}
    addition = {"own": 80.0, "other": 40.0, "both": 70.0, "edited": 68.0}
    negation = {("a", 0.0): 60.0, ("a", 1.0): 30.0, ("control", 0.0): 50.0, ("control", 1.0): 49.0}
    rows = [
        common | {"experiment": "stitched_addition", "task": task, "subset": "a+b", "front": front,
                  "alpha": alpha, "value": value + alpha}
        for task in "ab"
        for front, value in addition.items()
        for alpha in (0.0, 1.0)
    ]  # fmt: skip
    return rows + [
        common | {"experiment": "stitched_negation", "task": task, "subset": "a", "front": front,
                  "alpha": alpha, "value": value + 5 * (front == "weights")}
        for (task, alpha), value in negation.items()
        for front in ("features", "weights")
    ]  # fmt: skip


def sides(records, claim, model="mini"):
    chosen = pairing.sides_of(CLAIMS[claim], records, model, 8)
    return [side.rows["value"].tolist() for side in chosen]


def judged(claim, records):
    return judgement.verdict(CLAIMS[claim], records, model="mini")


def gridded(rows):
    more = {"suite": "mini", "init": "pretrained", "split": "test", "subset": "", "block": pd.NA}
    return pd.DataFrame(rows).assign(**more)


def test_merges_of_all_tasks_are_compared_task_by_task():
    values = {"wudi": 70.0, "ties": 66.0, "arithmetic": 65.0}
    common = {"experiment": "merging", "model": "mini", "suite": "mini", "init": "pretrained"}
    common |= {"split": "test", "metric": "absolute", "n": 500}
    rows = [
        {**common, "method": method, "task": task, "seed": seed, "n_tasks": n, "merge": merge,
         "subset": "" if n == 8 else "a+b",
         "value": value + seed + (merge == "wudi") * len(task) - 20 * (method == "linearized")}
        for merge, value in values.items()
        for method in ("nonlinear", "linearized")
        for task in ("a", "bb", "ccc")
        for seed in (0, 1)
        for n in (2, 8)
    ]  # fmt: skip
    found = judged("merging-wudi-ties", pd.DataFrame(rows))
    assert found.by_task == {"a": 5.0, "bb": 6.0, "ccc": 7.0}
    assert found.outcome == "holds" and set(found.sources) == {"seeds", "tasks"}
    untested = judged("merging-tsv-consensus", pd.DataFrame(rows))
    assert untested.outcome == "not tested"
    none = pd.DataFrame(rows).drop(columns="merge")
    assert judged("merging-ties", none).outcome == "not tested"


def test_segments_averages_and_merged_features(records):
    merged, endpoint = sides(records, "ctl-4.1-vit")
    assert merged == pytest.approx([0.01, 0.011]) and endpoint == pytest.approx([0.05, 0.051])
    error, one = sides(records, "ctl-4.1-vit-coef")
    assert error == pytest.approx([0.03, 0.029]) and one == [1, 1]
    assert sides(records, "ctl-fig5-average")[1] == pytest.approx([0.05, 0.051])
    older = records[records["metric"] != "endpoint"]
    assert sides(older, "ctl-4.1-vit")[1] == []
    assert sides(records, "ctl-fig2-mlp")[0] == pytest.approx([0.01, 0.011])
    assert sides(records, "ctl-4.3-two")[1] == pytest.approx([0.3, 0.301])
    # Nine times 0.2 is beyond the condition; of the sums of four the longer one is taken.
    assert sides(records, "ctl-4.3-all")[1] == pytest.approx([0.4, 0.401])
    assert sides(records, "ctl-4.1-lmc-resnet") == [[50.0, 60.0], [90.0, 95.0]]
    averaged, alone = sides(records, "ctl-fig4-better")  # each model of each group
    assert averaged == [61.0, 61.0, 63.0, 63.0, 62.0, 62.0]
    assert alone == [58.0, 57.0, 58.0, 59.0, 57.0, 59.0]
    found, one = sides(records, "ctl-fig4-correlation")
    assert found == pytest.approx([1.0]) and one == [1.0]
    assert sides(records, "ctl-fig9-both") == [[70.5], [60.5]]
    assert sides(records, "ctl-fig9-edited") == [[70.5], [68.5]]
    rows = records[records["experiment"] == "stitched_addition"]
    both = COMPARISONS["stitched_sums"](CLAIMS["ctl-fig9-both"], rows, records)
    assert both["both"]["n"].tolist() == [1000]  # a pair's images, whatever the coefficients
    for claim, start, features, weights in (
        ("ctl-fig10-target", 60, 30, 35), ("ctl-fig10-control", 50, 49, 54),
    ):  # fmt: skip
        assert sides(records, claim) == [[features], [start]]
        rows = records[records["experiment"] == "stitched_negation"].assign(init="pretrained")
        both = COMPARISONS["stitched_negations"](CLAIMS[claim], rows, records)
        assert both["weights"]["value"].tolist() == [weights]
    found = judged("ctl-4.1-vit", records)
    assert found.n_seeds == 2 and found.interval.effect == pytest.approx(0.04)
    found = judged("ctl-4.1-vit-coef", records)
    assert found.interval.effect == pytest.approx(0.0705)
    assert found.outcome == "holds" and found.sources == ("seeds",)
    against = records.assign(value=-records["value"])
    assert judged("ctl-4.1-vit", against).interval.effect < 0
    lacking = records[records["experiment"] != "ctl"]
    assert judged("ctl-4.1-vit", lacking).outcome == "not tested"


def test_costs_are_compared_by_variant_and_over_rounds():
    rows = [
        {"experiment": "cost", "model": "mini", "method": method, "variant": variant, "seed": 0,
         "task": "a", "metric": metric, "value": value, "low": value - spread,
         "high": value + spread, "n": 15}
        for method, variant, times, memory in (
            ("nonlinear", "standard", 1.0, 100.0), ("linearized", "listing", 3.0, 180.0),
            ("linearized", "ours", 1.6, 110.0), ("attention", "attention", 0.8, 80.0),
        )
        for metric, value, spread in (("time_ratio", times, 0.0 if times == 1 else 0.2),
                                      ("peak_memory", memory, 0.0))
    ]  # fmt: skip
    table = records_table.tidy(rows)
    assert sides(table, "tangent-B-time") == [[3.0], [1.0]]
    found = {
        name: judged(name, table)
        for name in ("tangent-B-time", "tangent-B-memory", "linear-3-cost-time")
    }
    assert {name: v.outcome for name, v in found.items()} == {
        "tangent-B-time": "holds", "tangent-B-memory": "outside the band",
        "linear-3-cost-time": "holds",
    }  # fmt: skip
    time, memory = (found[f"tangent-B-{what}"] for what in ("time", "memory"))
    assert time.sources == ("rounds",) and time.interval.effect == pytest.approx(1.1)
    # 2.14 of 1.253 x 0.4 / 1.349 / sqrt(15)
    assert time.interval.high - 1.1 == pytest.approx(0.2058, abs=1e-3)
    assert memory.interval.low == memory.interval.high == pytest.approx(-0.1)
    (row,) = statements.verdict_rows([memory]).to_dict("records")
    assert statements.effect_of(row) == "1.8, limit 1.9, margin −0.1 times, does not vary"
    gains = results.gains(table)
    gains = gains.set_index("over a standard step")
    assert gains["the paper's listing"].to_dict() == {"time of a step": 3.0, "peak memory": 1.8}
    assert gains["gain"].tolist() == pytest.approx([3 / 1.6, 180 / 110])
    older = table.drop(columns=["variant", "low", "high"]).drop_duplicates(["method", "metric"])
    assert judged("tangent-B-time", older).outcome == "not tested"


def test_linear_regimes_are_compared_at_equal_length():
    rows = [
        {"experiment": "linearity", "model": "mini", "method": method, "seed": 0, "task": task,
         "alpha": alpha, "metric": "gap_along", "value": gap * alpha, "size": size * alpha}
        for task, length in (("a", 2.0), ("b", 1.0))
        for method, gap, size in (("attention", 0.6, length), ("nonlinear", 0.5, 1.0))
        for alpha in (0.5, 1.0, 2.0)
    ]  # fmt: skip
    table = gridded(rows)
    attention, nonlinear = sides(table, "linear-1-gap-nonlinear")
    assert attention == pytest.approx([0.3, 0.6])  # twice as long on a: halfway
    assert nonlinear == pytest.approx([0.5, 0.5])
    one = table[table["method"] == "attention"]
    assert sides(one, "linear-1-gap-nonlinear") == [[], []]


def strengths(*, gone=()):
    own, rows = TABLE["tau_jp"].weight, []
    for factor, told, tested in ((0, 50, 50), (0.3, 60, 57), (1, 58, 55), (10, 40, 90)):
        for seed, split in ((0, "validation"), (0, "test"), (1, "validation"), (1, "test")):
            rows.append(
                {"experiment": "penalty_strength", "model": "mini", "method": "tau_jp",
                 "seed": seed, "task": "a", "metric": "absolute", "split": split, "n_tasks": 8,
                 "penalty": factor * own,
                 "value": (told if split == "validation" else tested) + seed}
            )  # fmt: skip
    rows += [
        rows[0] | {"metric": "diverged_at", "penalty": factor * own, "value": 9.0}
        for factor in gone
    ]
    return records_table.tidy(rows)


def test_a_penalty_is_as_strong_as_validation_images_choose():
    assert sides(strengths(), "merging-tau_jp") == [[57, 58], [50, 51]]
    assert sides(strengths(), "merging-strengths-tau_jp") == [[57, 58], [55, 56]]
    assert sides(strengths(gone=[0.3]), "merging-tau_jp") == [[55, 56], [50, 51]]
    assert sides(strengths(), "merging-ortho_reg") == [[], []]
    unpenalised = strengths().drop(columns="penalty")
    assert sides(unpenalised, "merging-tau_jp") == [[], []]
    best_without = strengths()
    without = (best_without["penalty"] == 0) & (best_without["split"] == "validation")
    best_without.loc[without, "value"] = 99  # no penalty at all is not among what is chosen
    assert sides(best_without, "merging-tau_jp") == [[57, 58], [50, 51]]
    claim = CLAIMS["merging-tau_jp"]
    tasks = [strengths().assign(task=t) for t in "abcd"]
    found = judgement.verdict(claim, pd.concat(tasks), model="mini")
    assert found.sources == ("seeds", "tasks") and found.interval.effect == 7


def test_transitivity_is_counted_at_every_threshold(monkeypatch):
    names, rows = "abcde", []
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            value = 0.05 if {one, other} <= set("abcd") else 0.15
            for metric, number in (("distance", value), ("base", 1.0)):
                rows.append(
                    {"experiment": "ctl", "model": "mini", "method": "nonlinear", "seed": 0,
                     "task": f"{one}+{other}", "alpha": 0.5, "metric": metric, "value": number}
                )  # fmt: skip
    table = gridded(rows)
    found = COMPARISONS["transitivity"](CLAIMS["ctl-conj-4.1"], table, table)
    linked = found["linked"].set_index("task")["value"]
    assert linked.index.tolist() == [
        f"{t:g}" for t in THRESHOLDS if 0.05 <= t
    ]  # no premise holds below
    assert linked["0.06"] == 0 and linked["0.2"] == 0


def test_comparisons_are_registered_and_made_at_once(records, monkeypatch):
    claim, made = CLAIMS["ctl-4.1-vit"], []
    own = COMPARISONS[claim.comparison]
    counted = lambda *sides: made.append(sides) or own(*sides)  # noqa: E731
    monkeypatch.setitem(COMPARISONS._entries, claim.comparison, counted)
    pairing.sides_of(claim, records, "mini", 8)
    assert len(made) == 1
    monkeypatch.delitem(COMPARISONS._entries, "features")
    refuses("'features'", judgement.verdict, CLAIMS["ctl-4.1-vit"], records, model="mini")


def test_comparisons_of_claims_are_registered():
    assert {claim.comparison for claim in CLAIMS.values()} - {""} <= set(COMPARISONS)
    unused = set(COMPARISONS) - {claim.comparison for claim in CLAIMS.values()}
    assert unused == {"emergence: finetuning", "emergence: other samples"}
    fits = pd.DataFrame(
        {"predictor": ["bound", "curvature", "distance", "second_order"],
         "value": [0.8, np.nan, 0.9, 0.7], "low": 0.1, "high": 0.95, "n_pairs": 60}
    )  # fmt: skip
    table = results.r_squared(fits)
    assert table["paper R²"].tolist() == [0.903, 0.782, 0.839]
    assert table["R² here"].tolist()[::2] == [0.8, 0.9]


def test_both_ends_of_a_condition():
    names, usual = task_names("resnet18"), setting("resnet18")
    rows = []
    for seed in (0, 1):
        for epochs, value in ((0, 0.2), (10, 0.15), (20, 0.1)):
            for metric, number in (("distance", value), ("coef", 1 - value)):
                rows.append(
                    {"experiment": "ctl", "model": "resnet18", "method": "nonlinear",
                     "seed": seed, "task": f"{names[1]}+{names[2]}", "alpha": 0.5, "block": 7,
                     "metric": metric, "value": number, "pretraining": epochs, "finetuning": 10,
                     "replaced": "other", "ratio": 0.0}
                )  # fmt: skip
    for row in [r for r in rows if r["pretraining"] == usual.pretraining]:
        for replaced in ("pretraining", "other"):
            rows.append(row | {"replaced": replaced, "ratio": 1.0})
            rows.append(row | {"replaced": replaced, "ratio": 0.0})
        rows.append(row | {"finetuning": 20})
    table = records_table.tidy(pd.DataFrame(rows).drop_duplicates())
    assert sides(table, "ctl-fig11-pretraining") == [[0.1, 0.1], [0.2, 0.2]]
    assert sides(table, "ctl-fig11-pretraining-coef")[0] == pytest.approx([0.1, 0.1])
    finetuning, pretraining = sides(table, "ctl-fig11-finetuning")
    assert pretraining == pytest.approx([0.1, 0.1]) and finetuning == pytest.approx([0.0, 0.0])


def closed_records():
    usual = {"split": "test", "seed": 0, "task": "a+b", "n": 10}
    rows = [
        {**usual, "experiment": "disentanglement", "method": "nonlinear", "model": model,
         "init": init, "metric": "xi_classifier_box", "value": value}
        for model, init, value in (
            ("mini_few", "pretrained", 10.0), ("mini_mae", "pretrained", 60.0),
            ("mini_few", "random", 50.0),
        )
    ]  # fmt: skip
    groups = {"a": 100.0, "b": 100.0, "a+b": 80.0, "a+c": 90.0, "b+c": 94.0, "a+b+c": 70.0}
    rows += [
        {**usual, "experiment": "subsets", "method": "full", "model": "mini_few", "task": "all",
         "subset": group, "n_tasks": group.count("+") + 1, "metric": metric, "value": value}
        for group, value in groups.items() for metric in ("normalised", "absolute")
    ]  # fmt: skip
    return records_table.tidy(rows)


def test_sums_conditions_and_untrained_networks():
    records = closed_records()
    assert sides(records, "closed-4.1-sup_few") == [[10.0], [50.0]]
    for role, effect in (("sup_few", 40.0), ("mae", -10.0)):  # one seed and no interval
        found = judged(f"closed-4.1-{role}", records)
        assert (found.outcome, found.interval.effect) == ("undecided", effect)
    assert judged("closed-4.1-dino", records).outcome == "not tested"
    two, one = sides(closed_records(), "closed-fig7-two-sup_few")
    assert two == pytest.approx([88.0]) and one == [100.0]
    claim = CLAIMS["closed-fig7-two-sup_few"]
    rows = closed_records()
    every = COMPARISONS["decay"](claim, rows[rows["model"] == "mini_few"], rows)["all"]
    assert every["value"].tolist() == pytest.approx([70.0])
    usual = {"pretraining": 10, "finetuning": 10, "replaced": "other", "ratio": 0.0, "wider": 1.0}
    rows = linearity("ctl", "resnet18", (0, 1), **usual)
    rows += linearity("ctl", "resnet18", (0, 1), **usual | {"pretraining": 0})
    narrow = varied(records_table.tidy(rows), "pretraining")
    wide = [{**row, "wider": 4.0, "value": 9.0} for row in rows]
    both = varied(records_table.tidy(rows + wide), "pretraining")
    assert len(narrow) == len(rows)
    pd.testing.assert_frame_equal(both.reset_index(drop=True), narrow.reset_index(drop=True))


@pytest.mark.parametrize("chapter", ["linear_layers", "ctl"])
def test_growth_is_judged_by_what_the_first_chapter_recorded(chapter, tmp_path, monkeypatch):
    growing = [
        claim for claim in CLAIMS.values() if claim.id.startswith(f"{chapter.split('_')[0]}-growth")
    ]
    assert growing
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    experiment = "ctl" if chapter == "ctl" else "addition"
    rows = linearity("ctl", "mini_3", (0, None))
    rows.append(
        {"experiment": "addition", "model": "mini_3", "method": "nonlinear", "seed": 0, "task": "a",
         "metric": "absolute", "value": 50.0, "split": "test", "n": 9, "n_tasks": 8}
    )  # fmt: skip
    records_table.write(results.path_of("tangent", "pretraining"), records_table.tidy(rows), {})
    found = results.evidence(chapter)
    assert set(found["model"]) == {"mini_3"} and set(found["experiment"]) == {experiment}


def test_errors_of_all_pairs_are_evidence_of_other_chapters(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    common = {"experiment": "crossing", "model": "mini", "method": "nonlinear", "seed": 0,
              "split": "test", "n": 9, "task": "a+b", "alpha": 0.5}  # fmt: skip
    values = {"xi_classifier": 8.0, "xi_representation": 0.4, "cosine": 0.1}
    rows = [{**common, "metric": name, "value": value} for name, value in values.items()]
    records_table.write(results.path_of("merging", "matrix"), records_table.tidy(rows), {})
    for chapter in ("tangent", "linear_layers", "closed_vocab"):
        found = results.evidence(chapter).set_index("metric")["value"]
        assert found.to_dict() == {"xi_classifier": 8.0, "xi_representation": 0.4}


def test_gaps_are_below_nonlinear_on_the_same_task_and_the_start_is_one_for_all_seeds():
    rows = [
        {"experiment": name, "model": "mini", "method": method, "seed": seed, "task": task,
         "metric": metric, "n": 400, "value": value + seed, "n_tasks": n, "init": init}
        for name, metric, n, scores in (
            ("single", "single", None, {"nonlinear": 90.0, "posthoc": 80.0, "pretrained": 50.0}),
            ("addition", "absolute", 8, {"nonlinear": 70.0, "posthoc": 60.0}),
        )
        for method, value in scores.items()
        for seed in ((0,) if method == "pretrained" else (0, 1)) for task in "ab"
        for init in ("pretrained", *(("random",) if method == "nonlinear" else ()))
    ]  # fmt: skip
    df = records_table.tidy(rows)
    single = df[df["experiment"] == "single"]
    claim = dataclasses.replace(CLAIMS["tangent-D1-gap-large"], left="posthoc", right="linearized")
    found = COMPARISONS["gaps"](claim, single, df)
    assert found["posthoc"]["value"].tolist() == [10.0] * 4
    shares = [(share * 400 + 2) / 404 for share in (0.8, 0.9)]  # two images more of either sort
    variance = sum(share * (1 - share) for share in shares) / 400
    assert found["posthoc"]["error"].iloc[0] == pytest.approx(100 * variance**0.5)
    sums = df[(df["experiment"] == "addition") & (df["init"] == "pretrained")]
    found = COMPARISONS["over_start"](CLAIMS["tangent-text-adds"], sums, df)
    assert found["start"]["value"].tolist() == [50.0] * 4
    assert found["nonlinear"]["value"].tolist() == [70.0, 70.0, 71.0, 71.0]


def test_gaps_know_what_each_image_gives_to_them():
    """Both accuracies are of the same images: one that both answer alike adds no error."""
    answers = {"nonlinear": [1, 1, 0, 1], "linearized": [1, 0, 1, 0], "posthoc": [1, 1, 1, 1]}
    rows = [
        {"experiment": "single", "model": "mini", "method": method, "seed": seed, "task": "a",
         "split": "test", "metric": "single", "n": 4, "value": 25.0 * sum(right),
         "hits": images.packed(np.array(right, dtype=bool))}
        for method, right in answers.items() for seed in (0, 1)
    ]  # fmt: skip
    records = records_table.tidy(rows)
    claim = CLAIMS["tangent-D1-gap-large"]
    found = COMPARISONS["gaps"](claim, records, records)
    parts = {name: images.given(side["hits"].iloc[1], 4) for name, side in found.items()}
    assert parts["linearized"].tolist() == [0, 1, -1, 1] and not parts["nonlinear"].any()
    assert found["linearized"]["value"].tolist() == [25.0, 25.0]
    assert (found["posthoc"]["error"] > 20).all()  # all are right, and yet not sure
    unknown = records.assign(hits=records["hits"].where(records["method"] == "posthoc"))
    assert COMPARISONS["gaps"](claim, unknown, unknown)["posthoc"]["hits"].isna().all()
    with_many = records.assign(n=records["n"].where(records["method"] != "posthoc", 8))
    assert COMPARISONS["gaps"](claim, with_many, records)["posthoc"]["hits"].isna().all()


def test_errors_beyond_one_and_monotone_curves():
    common = {"experiment": "sweep", "metric": "normalised", "method": "nonlinear", "n": 9,
              "split": "validation", "model": "mini_dino"}  # fmt: skip
    curves = {"falls": [80, 85, 70, 60], "climbs": [80, 85, 60, 63]}
    outcomes = {}
    for name, curve in curves.items():
        df = records_table.tidy(
            {**common, "task": task, "seed": seed, "alpha": 0.1 * i, "value": float(value)}
            for i, value in enumerate(curve) for task in "ab" for seed in (0, 1)
        )  # fmt: skip
        found = judged("closed-fig2-dino", df)
        outcomes[name] = found.outcome, found.value
    assert outcomes == {"falls": ("holds", 0.0), "climbs": ("outside the band", 3.0)}
    rows = [
        {"experiment": "disentanglement", "model": "mini", "method": "attention", "seed": seed,
         "task": "a+b", "metric": f"xi_{side}_{end}", "value": value, "n": 9}
        for (side, end), value in {
            ("classifier", "box"): 10.0, ("classifier", "beyond"): 40.0,
            ("representation", "box"): 0.5, ("representation", "beyond"): 1.0,
        }.items() for seed in (0, 1)
    ]  # fmt: skip
    assert sides(records_table.tidy(rows), "linear-fig4-beyond") == [[2.0, 2.0], [4.0, 4.0]]


def test_a_part_that_has_maps_and_tables_is_evidence_with_both(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    common = {"model": "mini_3", "method": "nonlinear", "seed": 0, "split": "test", "n": 9}
    rows = [
        {**common, "experiment": "disentanglement", "metric": "xi_classifier", "task": "a+b",
         "alpha1": alpha, "alpha2": alpha, "value": 10.0 + 10 * alpha}
        for alpha in (0.0, 1.0, 2.0)
    ]  # fmt: skip
    single = {**common, "experiment": "single", "metric": "single", "task": "a", "value": 50.0}
    table = records_table.tidy([*rows, single])
    records_table.write(results.path_of("tangent", "pretraining"), table, {})
    found = results.evidence("tangent").set_index("metric")["value"]
    assert found.to_dict() == {"xi_classifier_box": 15.0, "single": 50.0}
