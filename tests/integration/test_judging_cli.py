"""`tasklab judge` on a few steps and images: rows, gains over recorded merges, and places."""

import json

import pandas as pd
import pytest

from tasklab.__main__ import main
from tasklab.evidence import study
from tasklab.evidence.records import targets
from tasklab.tasks import icons
from tests.helpers import mistaken

MEAN = "def merge(vectors):\n    return sum(vectors.values()) / len(vectors)\n"


@pytest.fixture
def few(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    usual = study.judging.runs
    monkeypatch.setattr(
        study.judging, "runs", lambda *a, **b: usual(*a, **b, steps=2, progress=False)
    )
    (tmp_path / "mine.py").write_text(MEAN)
    return tmp_path


def test_a_rule_is_judged_beside_the_recorded_merges(few, capsys):
    words = ["judge", "mine.py", "--world", "icons_s", "--seeds", "1", "--sets", "1"]
    assert main([*words, "--csv", "rows.csv", "--json"]) == 0
    out, err = capsys.readouterr()
    (world,) = json.loads(out)["worlds"]
    assert "vectors of the recorded runs are fine-tuned first" in err
    rows = pd.read_csv(few / "rows.csv")
    usual = "+".join(icons.usual())
    own, sums = (rows[rows["merge"] == name] for name in ("mine.py", "arithmetic"))
    assert len(own) == 16 and set(own["subset"]) == {usual, "+".join(icons.sets()[8][1])}
    gains = {(one["against"], one["target"]): one for one in world["gains"]}
    assert set(gains) == {
        (m, t) for m in study.judging.AGAINST for t in (targets.TASKS, targets.SETS)
    }
    both = own.merge(sums, on=["subset", "task"])
    effect = (both["accuracy_x"] - both["accuracy_y"]).mean()
    assert gains["arithmetic", targets.TASKS]["effect"] == pytest.approx(effect)
    mean = own[own["subset"] == usual]["accuracy"].mean()
    assert world["mean"] == pytest.approx(mean) == world["places"]["mine.py"]
    better = sum(value > mean for value in world["places"].values())
    assert world["place"] == 1 + better and world["of"] == len(world["places"]) > 15
    page = (few / "judged.html").read_text("utf-8")
    assert "http" not in page and "<script" not in page and "Task arithmetic" in page
    assert main([*words]) == 0  # from the store
    out, err = capsys.readouterr()
    assert "fine-tuned first" not in err and "gain over TSV-M" in out
    (few / "mine.py").write_text(MEAN.replace("/ len", "/ 2 / len"))
    assert main([*words, "--csv", "rows.csv"]) == 0  # another rule: measured anew


@pytest.mark.parametrize("world", study.judging.WORLDS)
def test_default_tasks_alone_are_judged(few, capsys, world):
    words = ["judge", "ties", "--world", world, "--seeds", "1", "--sets", "0"]
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["worlds"]
    assert {one["target"] for one in found["gains"]} == {targets.TASKS}
    assert all(one["low"] is one["high"] is None for one in found["gains"])  # of one seed
    assert "needs two seeds" in (few / "judged.html").read_text("utf-8")
    assert found["of"] == len(found["places"]) > 15 and found["places"]["ties"] == found["mean"]


def test_mistakes_are_one_sentence(few, capsys):
    for words, told in (
        (["none.py"], "there is no file 'none.py'"),
        (["mine.py", "--world", "icon_s"], "icons_s"),
        (["mine.py", "--seeds", "0"], "seeds"),
        (["mine.py", "--out", "mine.py"], "mine.py holds something else"),
    ):
        assert told in mistaken(["judge", *words], capsys)


def test_progress_counts_fine_tuning_apart_from_searches(few, monkeypatch):
    """A search takes minutes of its own: time left is told of it alone."""
    order, shown = [], study.judging.bar
    usual = study.judging.fine_tune
    monkeypatch.setattr(study.judging, "fine_tune", lambda x: (usual(x), order.append("trained")))

    def bar(count, title, **about):
        made = shown(count, title, **about)
        order.append((count, title, made))
        return made

    monkeypatch.setattr(study.judging, "bar", bar)
    words = ["judge", "mine.py", "--world", "icons_s", "--seeds", "1", "--sets", "0"]
    assert main(words) == 0
    trained, (count, title, made) = order
    assert (trained, title) == ("trained", "search") and made.done == count > 4
