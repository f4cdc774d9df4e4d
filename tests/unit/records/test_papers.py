"""Records, and the join with the papers."""

import hashlib
import json
import math
import subprocess

import numpy as np
import pandas as pd
import pytest

from tasklab.bench import provenance
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.records import images, schema
from tasklab.evidence.records import table as records
from tasklab.evidence.records.papers import beside
from tasklab.evidence.records.table import is_awaited, summarise, tidy
from tasklab.evidence.study import results
from tasklab.storage import atomic
from tests.helpers import refuses
from tests.rows import added as row
from tests.rows import two_methods


# --- records ------------------------------------------------------------------------------------
def test_tidy_orders_and_summarise_averages():
    df = tidy([row("nonlinear", 60.0, vocabulary="open")])
    assert list(df.columns) == [*schema.COLUMNS, "vocabulary"]
    assert df.loc[0, ["suite", "init", "subset", "split"]].tolist() == [
        "mini", "pretrained", "", "test"]  # fmt: skip
    assert math.isnan(df.loc[0, "alpha"])
    df = tidy([row("nonlinear", v, seed=s, task=t)
               for s, t, v in [(0, "a", 10.0), (0, "b", 30.0), (1, "a", 40.0)]])  # fmt: skip
    found = summarise(df, ["method"])
    assert found.loc[0, "mean"] == 30.0  # seeds 20 and 40, not rows 26.7
    assert found.loc[0, "std"] == pytest.approx(math.sqrt(200))
    assert found.loc[0, "n_seeds"] == 2
    per_seed = summarise(df, ["seed"])
    assert per_seed["mean"].tolist() == [20.0, 40.0] and per_seed["std"].isna().all()
    refuses("at least one table", records.combine)
    one = tidy([row("nonlinear", 60.0), row("linearized", 50.0)])
    assert len(records.combine(one, one.iloc[:1])) == 2
    refuses("recorded twice", lambda: records.combine(one, one.assign(value=61.0)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"experiment": "single"}], "need the columns model, method"),
        ([row("nonliner", 60.0)], "did you mean 'nonlinear'"),
        ([row("nonlinear", 60.0, experiment="aditions")], "did you mean 'addition'"),
        (
            [row("nonlinear", 60.0, metric="target")],
            "metric of the experiment 'addition', 'target'",
        ),
        ([row("nonlinear", 60.0, block=3)], "column of the experiment 'addition', 'block'"),
        ([row("merged", 60.0)], "unknown method 'merged'"),
        ([row("nonlinear", math.nan)], "no value"),
        ([row("nonlinear", "x")], "the column 'value' of records holds numbers: "),
        ([row("nonlinear", 60.0, n=1.5)], "the column 'n' of records holds whole numbers: "),
        ([row("nonlinear", 60.0, n=10**30)], "the column 'n' of records holds whole numbers: "),
        ([row("nonlinear", 60.0, task="mean")], "per task"),
        ([row("nonlinear", 60.0), row("nonlinear", 61.0)], "recorded twice"),
        (  # with other answers it is still the same run
            [row("nonlinear", 60.0, hits="40:////"), row("nonlinear", 61.0, hits="40:///+")],
            "recorded twice",
        ),
        ([row("nonlinear", 0.5 + i / 100, seed=i) for i in range(8)], "look like fractions"),
        ([row("nonlinear", 100.5)], "outside 0 to 100"),
    ],
)
def test_tidy_refuses(rows, message):
    refuses(message, tidy, rows)


@pytest.mark.parametrize("name", ["study.csv", "study.csv.xz"])
def test_written_records_come_back(tmp_path, name):
    rows = [row("nonlinear", 61.25, alpha=0.3), row("pretrained", 50.0, seed=None, n=None)]
    path = records.write(tmp_path / "new" / name, rows, records.provenance({"steps": 2}))
    df, note = records.read(path)
    pd.testing.assert_frame_equal(df, tidy(rows))
    assert note["steps"] == 2 and "sha256" not in note
    assert sorted(p.name for p in path.parent.iterdir()) == [name, "study.json"]
    if name.endswith(".xz"):
        again = path.read_bytes()
        assert records.write(path, rows, note).read_bytes() == again  # no time is in it
        path.write_bytes(again[:-9])
        refuses("is damaged", records.read, path)


def test_files_that_change_or_fail_are_noticed(tmp_path):
    path = records.write(tmp_path / "study.csv", [row("nonlinear", 61.0)], {})
    path.write_text(path.read_text().replace("61.0", "71.0"))
    refuses("not the file", records.read, path)
    path.with_suffix(".json").write_text("{")
    refuses("not readable JSON", records.read, path)
    path.with_suffix(".json").unlink()
    refuses("study.json is missing", records.read, path)
    path = records.write(tmp_path / "study.csv", [row("nonlinear", 61.0)], {})
    refuses("twice", records.write, path, [row("nonlinear", 1.0), row("nonlinear", 2.0)], {})
    assert records.read(path)[0]["value"].tolist() == [61.0]
    (tmp_path / "file").write_text("")
    with pytest.raises(TasklabError, match="cannot write records"):
        records.write(tmp_path / "file" / "study.csv", [row("nonlinear", 61.0)], {})
    refuses("as .csv", lambda: records.write(tmp_path / "study.txt", [row("nonlinear", 61.0)], {}))


def test_provenance_is_the_packages_own(tmp_path):
    note = records.provenance({"preset": "full"}, gpu="a GPU", preset="quick", seconds=1.5)
    assert {"tasklab", "commit", "python", "torch", "open_clip", "utc", "platform"} <= set(note)
    assert note["preset"] == "full" and note["seconds"] == 1.5
    assert note["machine"]["gpu"] == "a GPU" and note["machine"]["cores"] >= 1
    json.dumps(note, allow_nan=False)
    file = tmp_path / "records.py"
    file.write_text("")
    assert provenance._commit(file) is None  # no repository
    _git(tmp_path, "init")
    assert provenance._commit(file) is None  # installed inside somebody else's repository
    _git(tmp_path, "add", "records.py")
    _git(tmp_path, "commit", "-m", "first")
    commit = provenance._commit(file)
    assert commit is not None and "+" not in commit
    file.write_text("changed")
    assert provenance._commit(file) == f"{commit}+dirty"


def _git(folder, *words):
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_what_is_not_recorded_yet_is_no_records(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "RECORDED", tmp_path)
    every = sum(len(entry.parts) for entry in CHAPTERS.values())
    assert results.how_many_recorded() == (0, every)
    df, origin = results.recorded("merging", "ways")
    assert df.empty and origin == {} and results.awaited("merging")
    assert results.evidence("merging").empty and is_awaited(df[df["seed"] == 0])
    further = {name for entry in schema.EXPERIMENTS.values() for name in entry.columns}
    assert set(df) == {*schema.COLUMNS, *further}  # so that what reads one finds it empty
    records.write(tmp_path / "merging.csv.xz", [row("nonlinear", 60.0)], {})
    kept = results.recorded("merging")[0]
    assert len(kept) == 1 and not is_awaited(kept) and not is_awaited(kept[kept["seed"] == 7])
    assert not results.awaited("merging") and results.how_many_recorded() == (1, every)
    assert results.recorded("merging", "ways")[0].empty and len(results.evidence("merging")) == 1
    refuses("did you mean 'ways'", results.recorded, "merging", "wayz")


# --- beside the papers --------------------------------------------------------------------------
def test_beside_joins_by_method_and_metric():
    df = pd.concat([two_methods({0: 4.0, 1: 6.0}), two_methods({0: 9.0}, n_tasks=2)])
    zero_shot = [row("pretrained", 52.0, experiment="single", metric="single", n_tasks=None)]
    table = beside(pd.concat([df, tidy(zero_shot)]), "tangent", "1", "vitb32")
    assert list(table.columns) == ["method", "called", "metric", "paper", "here",
                                   "std over seeds", "seeds", "difference"]  # fmt: skip
    ours = table.set_index(["called", "metric"])
    assert ours["method"].unique().tolist() == [
        "pre-trained", "non-linear", "post-hoc linearized", "linearized"
    ]  # fmt: skip
    linearized = ours.loc[("Linear. FT", "absolute")]
    assert (linearized["paper"], linearized["here"]) == (76.5, 65.5)
    assert linearized["difference"] == -11.0 and linearized["seeds"] == 2
    assert ours.loc[("Pre-trained", "absolute"), "here"] == 52.0  # from the zero-shot rows
    missing = ours.loc[("Post-hoc lin.", "normalised")]
    assert math.isnan(missing["here"]) and missing["seeds"] == 0


def test_joint_training_stands_above_the_sums():
    joint = [row("nonlinear", 90.0 + seed, experiment="joint", seed=seed) for seed in (0, 1)]
    df = pd.concat([two_methods({0: 4.0}), tidy(joint)])
    table = beside(df, "tangent", "1", "vitb32")[["method", "metric", "here", "seeds"]]
    first, second = table.to_dict("records")[:2]
    assert first == {
        "method": "non-linear, jointly", "metric": "absolute", "here": 90.5, "seeds": 2
    }  # fmt: skip
    assert second["method"] == "linearized, jointly" and math.isnan(second["here"])
    assert not table["method"][2:].str.contains("jointly").any()


def test_beside_random_initialisation_and_refusals():
    rows = [row("nonlinear", 20.0, init="random"), row("nonlinear", 70.0)]
    rows.append(row("nonlinear", 61.0, init="random", experiment="single", metric="single"))
    table = beside(tidy(rows), "tangent", "3", "vitb32").set_index(["called", "metric"])["here"]
    assert table[("Non-lin. FT", "single")] == 61.0
    assert table[("Non-lin. FT", "multi")] == 20.0
    named = beside(tidy(rows), "tangent", "3", "vitb32").set_index("called")["method"]
    assert named["Random init"] == "random weights"  # no pre-trained ones
    df = two_methods({0: 1.0})
    refuses("did you mean 'vitb32'", beside, df, "tangent", "1", "vitb23")
    with pytest.raises(TasklabError, match="select one first"):
        beside(pd.concat([df, df.assign(model="vitb16")]), "tangent", "1", "vitb32")


def test_box_means_average_cells_and_images():
    cells = {(0.0, 0.0): 1.0, (0.5, 1.0): 3.0, (1.5, 0.5): 100.0, (-0.5, 0.0): 100.0}
    df = tidy(
        row("nonlinear", value, experiment="disentanglement", metric="xi_classifier",
            task="Signs+Places", n_tasks=None, alpha1=a, alpha2=b)
        for (a, b), value in cells.items()
    )  # fmt: skip
    found = images.box_means(df)
    assert found["metric"].tolist() == ["xi_classifier_box"]
    assert found["value"].tolist() == [2.0] and found["n"].tolist() == [1000]
    assert images.box_means(df, -1, 2)["value"].tolist() == [51.0]
    random = np.random.default_rng(0)
    changed = random.random((2, 2, 30)) < [[[0.2]], [[0.6]]]  # cells, tasks, images
    df = tidy(
        row("nonlinear", 100 * bits.mean(1).sum(), experiment="disentanglement", n=30,
            metric="xi_classifier", task="Signs+Places", n_tasks=None, alpha1=0.5, alpha2=float(i),
            hits=images.packed(bits.ravel()))
        for i, bits in enumerate(changed)
    )  # fmt: skip
    (found,) = images.box_means(df).to_dict("records")
    given = images.given(found["hits"], 30)
    assert found["value"] == pytest.approx(100 * given.mean())
    of_tasks = changed.mean(0).var(1).sum() / 30  # a sum of two means of independent images
    assert given.var() / 60 == pytest.approx(of_tasks)
    df.loc[0, "hits"] = None
    assert pd.isna(images.box_means(df)["hits"][0])


@pytest.mark.parametrize(
    ("text", "note", "expected"),
    [
        (b"", None, "holds no records: "),
        (b"value\n1\n", [], "is not the file that its .json describes"),
    ],
)
def test_files_that_hold_no_records_are_named(tmp_path, text, note, expected):
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    note = {"sha256": hashlib.sha256(text).hexdigest()} if note is None else note
    path.with_suffix(".json").write_text(json.dumps(note))
    refuses(f"a.csv {expected}", records.read, path)


@pytest.mark.parametrize("at", range(3))
def test_records_whose_replacement_was_killed_are_the_old_or_the_new_ones(
    tmp_path, monkeypatch, at
):
    path, publish, done = tmp_path / "a.csv.xz", atomic.publish, []
    old, new = (tidy([row("nonlinear", value)]) for value in (1.0, 2.0))
    records.write(path, old, {"seeds": [0]})

    def killed(*places):
        if len(done) == at:
            raise KeyboardInterrupt
        done.append(places)
        publish(*places)

    monkeypatch.setattr(atomic, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        records.write(path, new, {"seeds": [0, 1]})
    monkeypatch.undo()
    table, note = records.read(path)
    assert (table["value"].tolist(), note) == (
        ([2.0], {"seeds": [0, 1]}) if at == 2 else ([1.0], {"seeds": [0]})
    )
    records.write(path, new, {"seeds": [0, 1]})
    note = json.loads((tmp_path / "a.json").read_text())
    assert sorted(note) == ["checksum", "seeds", "sha256"]
    (tmp_path / "a.json").write_text(json.dumps({**note, "seeds": [0, 3]}))
    refuses("a.json is damaged: its checksum", records.read, path)
    records.write(path, new, {"seeds": [0, 1]})
    assert len([*tmp_path.iterdir()]) == 2
