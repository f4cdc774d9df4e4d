"""What the recorded results hold: schema, weights, sittings, recommended values and verdicts."""

import functools
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tasklab.analyses import merging
from tasklab.bench.merges import MERGES
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments, study
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.chapters.chapter import HEADLINE
from tasklab.evidence.experiments.registry import find, usual_runs
from tasklab.evidence.records import schema
from tasklab.evidence.records.claims import SETTINGS
from tasklab.evidence.records.statements import SITE
from tasklab.evidence.records.table import tidy
from tasklab.evidence.study import outlook, results, sittings
from tasklab.models import loading
from tasklab.models.zoo import MINI_LR
from tasklab.storage.store import Store
from tasklab.tuning.recipe import recipe


@pytest.fixture(scope="module")
def judged(chapters_store):
    return lambda chapter: study.judged(chapter, store=Store(chapters_store))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_recorded_files_are_of_the_schema_the_weights_and_their_sittings(chapter):
    current = functools.cache(lambda name: loading.load(name).encoder.weights_hash)
    told = study.sittings_of(chapter)
    for part in CHAPTERS[chapter].parts:
        rows, origin = results.recorded(chapter, part)  # which checks them
        assert (len(rows) > 0) == results.path_of(chapter, part).exists()
        metrics = rows.groupby("experiment")["metric"].unique()
        for name, found in metrics.items():
            assert {*found} <= {*schema.EXPERIMENTS[name].metrics}, part
        if len(rows):
            assert origin["weights"] == current(origin["model"]), part  # a new model: new studies
            models = {work.changes.get("model", "mini") for work in CHAPTERS[chapter].works(part)}
            assert origin["model"] == (models.pop() if len(models) == 1 else "mini"), part
            listed = ", ".join(told.loc[told["part"] == part, "seeds"]).split(", ")
            assert {*map(int, listed)} == {*rows["seed"]} == {*origin["seeds"]}, part


def test_precisions_are_those_of_the_sittings():
    for file in sorted(study.results.RECORDED.glob("*.json")):
        origin = json.loads(file.read_text())
        told = {one.get("precision") for one in sittings.each_of(origin)} - {None}
        said = (origin["recipe"] or {}).get("precision")
        assert said is None or all(name in said for name in told), file.name
        assert told or said is None, file.name
        if len(told) == 1:
            assert {said} == told, file.name


def test_recorded_results_name_commits_that_are_in_the_history(root):
    def git(*words, told=""):
        run = subprocess.run(["git", *words], cwd=root, input=told, text=True, capture_output=True)
        return run.stdout.strip()

    if not (root / ".git").exists() or git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not here")
    commits = {c for chapter in CHAPTERS for c in study.sittings_of(chapter)["commit"]}
    answers = git("cat-file", "--batch-check", told="\n".join(commits)).splitlines()
    assert len(commits) > 10
    assert [line for line in answers if " commit " not in line] == []


def test_recommended_coefficients_are_fitted_to_the_recorded_runs(script):
    coefficients = script("coefficients")
    found, there = coefficients.table(), pd.read_csv(coefficients.FILE, index_col="merge")
    there["options"] = there["options"].fillna("")
    assert {*found.index} == {*merging.METHODS} and list(found["options"]) == list(there["options"])
    numbers = [*coefficients.TERMS, "spread", "settings"]
    np.testing.assert_allclose(found[numbers], there[numbers], atol=2e-3)


def test_recommended_sums_never_harm_and_are_near_the_best_on_recorded_curves(script):
    lost = script("coefficients").lost()
    assert len(lost) > 100 and (lost["gain"] > 0).all()
    assert (lost["lost"] <= 1).mean() > 0.8  # the page says how many
    assert lost["lost"].max() < 6 and lost["lost"].mean() < 0.6


def require_recorded(chapter, names):
    for part in names:
        if not results.path_of(chapter, part).exists():
            pytest.skip(f"{chapter}: {part} is not recorded yet")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_recorded_results_cover_the_chapter(chapter):
    methods = CHAPTERS[chapter].methods
    others = {"closed_vocab": ["together"], "merging": ["fewer"]}
    tables = ["editing", *others.get(chapter, [])]
    require_recorded(chapter, tables)
    origin = results.recorded(chapter)[1]
    table = results._of_the_first([results.recorded(chapter, part)[0] for part in tables])
    assert origin["preset"] == "full"
    if chapter == "ctl":
        require_recorded(chapter, ["methods"])
        assert set(methods) <= set(results.recorded(chapter, "methods")[0]["method"])
        return
    assert set(methods) <= set(table["method"])
    assert table.loc[table["method"] != "pretrained", "seed"].nunique() >= 3
    if chapter == "merging":
        merged = table[table["experiment"] == "merging"]
        assert set(merged["n_tasks"]) == {2, 4, 8}
        assert set(MERGES) <= set(merged["merge"])
        return
    sums = table[table["experiment"] == "addition"]
    added = {8} if chapter == "closed_vocab" else {2, 4, 8}
    assert set(sums["n_tasks"].dropna()) == added
    assert sums.groupby("method")["seed"].nunique().max() == HEADLINE


# Parts of models whose recording is under way, and how many seeds they have at least so far.
UNDER_WAY = {"blind": 3, "wordnet": 0, "wordnet_sums": 3}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_headlines_compare_has_the_seeds_that_it_declares(chapter):
    seen = 0
    for part, works in CHAPTERS[chapter].parts.items():
        for work in (one for one in works if one.seeds == HEADLINE):
            rows = results.recorded(chapter, part)[0]
            if part in UNDER_WAY:
                assert len(rows) == 0 or rows["seed"].nunique() >= UNDER_WAY[part]
                continue
            changes = {"model": "mini", "init": "pretrained", **work.changes}
            rows = rows[(rows["model"] == changes["model"]) & (rows["init"] == changes["init"])]
            rows = rows[rows["experiment"].isin([n for e in work.names for n in find(e).records])]
            for method in work.methods or ("pretrained", "full", "probe"):
                own = rows[rows["method"] == method]["seed"].unique()
                if len(own) or work.methods:
                    assert {*range(HEADLINE)} <= {*own}, (part, changes["model"], method)
                    seen += 1
    assert seen


@pytest.mark.parametrize(
    ("chapter", "part", "head"),
    [
        ("tangent", "rates", None),
        ("tangent", "text_rates", None),
        ("tangent", "wordnet_rates", None),
        ("closed_vocab", "rates", "probe"),
    ],
)
def test_the_rates_are_those_that_the_recorded_search_chose(chapter, part, head):
    require_recorded(chapter, [part])
    table, _ = results.recorded(chapter, part)
    assert set(table["split"]) == {"validation"}
    if (chapter, part) == ("tangent", "rates"):
        assert set(table["model"]) == {"mini"} and set(table["method"]) == {*MINI_LR}
    for (model, method), rows in table.groupby(["model", "method"]):
        task = rows["task"].iloc[0]
        assert recipe(model, task, method, head=head).lr == experiments.chosen_rate(rows, method)


def test_evidence_obeys_the_schema():
    for chapter in CHAPTERS:
        df = results.evidence(chapter)
        pd.testing.assert_frame_equal(tidy(df), df)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_claim_is_tested_by_the_recorded_results(chapter, judged):
    judging = [part for part in CHAPTERS[chapter].parts if not part.startswith("joint")]
    require_recorded(chapter, judging)
    found = judged(chapter)
    if not results.path_of("tangent", "pretraining").exists():  # by which growth is judged
        found = [v for v in found if not v.claim.grows]
    grids = {chapter, "tangent"} & {"tangent", "linear_layers"}
    if not all(results.path_of(name, "budgets").exists() for name in grids):  # of equal models
        found = [v for v in found if v.claim.setting == SETTINGS[0]]
    waiting = [
        v.claim for v in found
        if v.outcome == "not tested"
        and not v.value == v.value  # what compares a number with itself has one
    ]  # fmt: skip
    assert found and waiting == []
    for one in found if chapter == "ctl" else ():
        if one.claim.right.partition("@")[0] != "endpoint" or one.n_seeds:
            # along the length of pre-training it is one so far
            assert one.n_seeds >= (1 if one.claim.grows else 2), one.claim.id


def test_headlines_on_real_drawings_have_three_pretrainings(chapters_store):
    for chapter, claims in {
        "tangent": {"tangent-1-absolute", "tangent-2-target"},
        "linear_layers": {"linear-1-absolute-nonlinear", "linear-1-absolute-linearized"},
        "ctl": {"ctl-4.1-vit"},
    }.items():
        found = study.judged(chapter, model="icons_s", store=Store(chapters_store))
        several = {one.claim.id: one for one in found if one.n_pretrainings > 1}
        assert {one.n_pretrainings for one in several.values()} == {3}
        assert claims <= several.keys()
    levels = results.recorded("tangent", "icons_replicas")[0].query("metric == 'single'")
    levels = levels.groupby(["model", "method"])["value"].mean().unstack()
    assert levels["pretrained"].between(45, 60).all() and levels["nonlinear"].between(70, 76).all()


def test_findings_lead_to_their_evidence_and_numbers_bear_their_titles(monkeypatch, judged):
    monkeypatch.setenv(SITE, "1")
    verdicts = [verdict for chapter in CHAPTERS for verdict in judged(chapter)]
    found = study.findings(verdicts)
    assert len(found) == 3
    assert all(re.search(r'href="verdicts\.html#verdict-[\w-]+"', one.mark) for one in found)
    n = sys.modules["tasklab.evidence.study.findings"]._numbers("mini")
    assert n["before"] + 10 < n["added"] < n["merged"] < n["read"] < n["unlabelled"] < n["few"]
    assert n["random_added"] < n["before"] / 2 and n["near"] < n["far"] / 5


def test_every_part_that_trains_at_several_rates_is_counted_as_it_is(tmp_path):
    given = {"seeds": 1, "steps": 2, "store_root": tmp_path, "device": "cpu"}
    parameters = Parameters(model="mini_xs", preset="full", **given)
    order = [
        (chapter, part)
        for chapter, entry in CHAPTERS.items()
        for part, works in entry.parts.items()
        if any(find(name).runs is not usual_runs for work in works for name in work.names)
    ]
    assert {("merging", "fewer_rates"), ("tangent", "lengths")} <= {*order}
    for one in order:
        assert outlook.outlook(parameters, [one])["runs"].item() > 0, one


def test_the_shipped_records_answer():
    found = study.answers()
    first, second, _ = sys.modules["tasklab.evidence.study.answers"].WORLDS
    both = [one for one in found if {first, second} <= {*one.effects}]
    assert len(found) >= 9 and len(both) >= 8
