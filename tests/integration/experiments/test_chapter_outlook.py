"""What a chapter takes with other models is what its notebook then fine-tunes."""

import json
import re
from pathlib import Path

import pytest

from tasklab import Lab
from tasklab.evidence import chapters, experiments
from tasklab.evidence.chapters import closed_vocab, outlook
from tasklab.evidence.chapters.outlook import Count
from tasklab.tuning import scratch

RATES = closed_vocab._RATES["learning_rates"]["rates"]
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


def code(chapter):
    book = json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text("utf-8"))
    return "\n".join("".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code")


@pytest.fixture
def lab(tmp_path):
    return Lab("mini_xs", steps=1, store_root=tmp_path, progress=False, device="cpu")


def runs(lab):
    return len([*lab.store.configs("finetune")])


def foretold(lab, chapter):
    work = outlook.outlook(lab, chapter)
    return sum(one.runs - one.stored for one in (work.own, *work.others.values()))


@pytest.mark.parametrize("chapter", chapters.CHAPTERS)
def test_relatives_are_those_of_the_notebook(chapter):
    source = code(chapter) + code(f"{chapter}{chapters.MORE}")
    used = set(re.findall(r'lab\.relative\("(\w+)"\)', source))
    for listed in re.findall(r"lab\.relative\(role\) for role in \(([^)]*)\)", source):
        used |= set(re.findall(r"\w+", listed))
    asked = {work.role for work in chapters.chapter(chapter).live if not work.probed}
    assert asked - {""} == used


def test_rates_are_those_of_the_notebook():
    (told,) = re.findall(r'\["probe", "nonlinear"\], rates=\(([^)]*)\)', code("closed_vocab_more"))
    assert tuple(map(float, told.split(","))) == RATES


def test_what_cross_task_linearity_takes_is_what_is_then_run(lab):
    example = Lab(
        "mini_xs", steps=1, live="example", store_root=lab.store.root, progress=False, device="cpu"
    )
    assert (foretold(example, "ctl"), foretold(example, "ctl_more")) == (2, 0)
    expected = foretold(lab, "ctl")
    two = lab.sibling(tasks=experiments.pairs(lab, 1)[0])
    experiments.cross_task(two, ["nonlinear"])
    assert runs(lab) == 2 and foretold(example, "ctl") == 0
    lab.vectors("nonlinear", 0)
    experiments.averaging(lab)
    assert runs(lab) == expected and foretold(lab, "ctl") == 0
    expected += foretold(lab, "ctl_more")
    experiments.cross_task_addition(lab.relative("text"), ["nonlinear"])
    experiments.cross_task(lab.relative("small"), ["nonlinear", "linearized", "attention"])
    experiments.cross_task(lab.relative("sup_few"), ["nonlinear"])
    assert runs(lab) == expected and foretold(lab, "ctl_more") == 0


@pytest.mark.parametrize(
    ("chapter", "asked"),
    [
        ("merging", {"small": ("nonlinear", "linearized", "attention")}),
        (
            "tangent_more",
            {
                "small": ("nonlinear",), "medium": ("nonlinear",), "large": ("nonlinear",),
                "random": ("nonlinear", "linearized"), "convnext": ("nonlinear", "linearized"),
                "closed": ("nonlinear",), "text": ("nonlinear", "linearized"),
            },
        ),
    ],
)  # fmt: skip
def test_runs_of_relatives_are_recognised_in_the_store(lab, chapter, asked):
    expected = outlook.outlook(lab, chapter)
    for role, methods in asked.items():
        for method in methods:
            lab.relative(role).vectors(method, 0)
    after = outlook.outlook(lab, chapter)  # mini_xs is the small one of its family
    assert after.own.stored == len(lab.relative("small").suite.names)
    assert runs(lab) == sum(one.runs for one in expected.others.values()) + after.own.stored
    assert not any(one.stored for one in expected.others.values())
    assert after.others == {n: Count(one.runs, one.runs) for n, one in expected.others.items()}


@pytest.mark.parametrize(
    ("page", "rates"), [("closed_vocab", 0), ("closed_vocab_more", len(RATES))]
)
def test_schemes_train_and_the_chapters_own_model_does_not(lab, page, rates):
    work = outlook.outlook(lab, page)
    assert work.own == Count()
    tasks = len(lab.suite.names)
    first, *others = experiments.schemes(lab)
    assert [*work.others] == [one.parameters.model for one in (first, *others)]
    assert [one.runs for one in work.others.values()] == [2 * tasks + rates] + 3 * [tasks]
    first.tune("Signs", "nonlinear", 0)
    known = outlook.outlook(lab, page).others[first.parameters.model]
    assert known == Count(2 * tasks + rates, 1)


def test_the_example_trains_one_scheme(tmp_path):
    lab = Lab("mini", steps=1, store_root=tmp_path, progress=False, device="cpu")
    assert lab.parameters.live == "example"
    (one,) = experiments.schemes(lab, ["clip_more"])
    work = outlook.outlook(lab, "closed_vocab")
    expected = {one.parameters.model: len(lab.suite.names)}
    assert {name: plan.runs for name, plan in work.others.items()} == expected
    assert outlook.outlook(lab, "closed_vocab_more") == outlook.Outlook(Count(), {})


@pytest.mark.usefixtures("few_pictures")
def test_networks_from_scratch_are_those_that_the_chapter_trains(lab, monkeypatch):
    monkeypatch.setattr(scratch, "train", lambda net, params, *_, **__: params)
    for measured in ("loss", "accuracy"):  # along segments
        monkeypatch.setattr(scratch, measured, lambda *_: 0.0)
    expected = outlook.outlook(lab, "ctl").networks
    assert expected.stored == 0
    for what, values in experiments.conditions("quick").items():
        experiments.emergence(lab, what, values)
    assert len([*lab.store.configs("scratch")]) == expected.runs
    after = outlook.outlook(lab, "ctl").networks
    assert after == Count(expected.runs, expected.runs)
    more = outlook.outlook(lab, "ctl_more").networks
    for network in ("mlp", "resnet18"):
        experiments.scratch_linearity(lab, network)
        experiments.segments(lab, network)
        experiments.theorem(lab, network)
    assert len([*lab.store.configs("scratch")]) == expected.runs + more.runs - more.stored
    assert outlook.outlook(lab, "ctl_more").networks == Count(more.runs, more.runs)
    assert "experiments.conditions(preset)" in code("ctl")
    for call in ("scratch_linearity", "segments", "theorem"):
        assert len(re.findall(rf"experiments.{call},\s+network=", code("ctl_more"))) == 2


def test_the_sentence_has_every_model_that_is_fine_tuned(lab):
    told = outlook.describe(lab, "merging")
    assert told.startswith("Fine-tuning: mini_xs 20 runs, 0 of them in the store.")
    assert "small networks" not in told
    assert "mini_sup_few 2 runs, 0 of them" in outlook.describe(lab, "merging_more")
    assert "mini_sup_few" not in outlook.describe(lab, "linear_layers")
