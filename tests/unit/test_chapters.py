"""The table of chapters names what exists, and needs no torch."""

import dataclasses
import inspect
import re
import sys
import types
from pathlib import Path

import pytest

from tasklab import Lab
from tasklab.bench.parameters import Parameters
from tasklab.evidence import chapters
from tasklab.evidence.chapters import CHAPTERS, Work, outlook
from tasklab.evidence.experiments.registry import find
from tasklab.evidence.records.schema import EXPERIMENTS
from tests.helpers import refuses

ROOT = Path(chapters.__file__).parents[3]


@pytest.mark.parametrize("name", CHAPTERS)
def test_it_names_what_exists(name):
    entry = CHAPTERS[name]
    assert (ROOT / f"notebooks/{name}.ipynb").is_file()
    for work in (work for works in entry.parts.values() for work in works):
        for experiment, options in work.names.items():
            methods = [work.methods] if work.methods else []
            inspect.signature(find(experiment).call).bind("lab", *methods, **options)
    for work in entry.live:
        for experiment, options in work.names.items():
            inspect.signature(find(experiment).call).bind_partial("lab", **options)
    for other, parts, sorts in entry.elsewhere:
        assert set(parts) <= set(CHAPTERS[other].parts) and set(sorts) <= set(EXPERIMENTS)
    assert set(entry.needs("quick")) <= set(entry.needs("full"))


def test_chapters_are_in_order_and_modules_belong_to_one():
    assert [entry.number for entry in CHAPTERS.values()] == [1, 2, 3, 4, 5]
    toc = (ROOT / "_toc.yml").read_text("utf-8")
    expected = [*CHAPTERS, *(f"{name}_more" for name in CHAPTERS)]
    assert re.findall(r"notebooks/(\w+)", toc) == expected
    for model in ("convnext", "mini_convnext"):
        refuses(f"attention, .*'{model}'", chapters.check, "linear_layers", model)
        chapters.check("tangent", model)
    for model in ("mini", "vitb32", "vitb16_in1k", "timm/resnet50.a1_in1k"):
        chapters.check("linear_layers", model)
    refuses("unknown chapter 'tangnet': did you mean 'tangent'", chapters.check, "tangnet", "mini")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parts": {}}, "the first part of chapter 'tangent' must be 'editing'"),
        ({"methods": ("linearised",)}, "unknown method in chapter 'tangent', 'linearised'"),
        ({"live": (Work((), {}, role="smal"),)}, "unknown role in chapter 'tangent', 'smal'"),
    ],
)
def test_what_is_declared_in_part_is_one_sentence(change, told):
    refuses(told, lambda: dataclasses.replace(CHAPTERS["tangent"], **change))


def test_a_module_without_a_chapter_is_named(monkeypatch):
    name = f"{chapters.__name__}.rotation"
    monkeypatch.setitem(sys.modules, name, types.ModuleType("rotation"))
    refuses(r"chapters.rotation must declare CHAPTER", chapters._declared, "rotation")


def test_a_notebook_runs_its_example_alone_beside_recorded_results():
    example, chapter, more = (
        Work(("nonlinear",), {"single": {}}, page=page, role=role)
        for page, role in (("example", ""), ("chapter", "small"), ("more", "text"))
    )
    entry = dataclasses.replace(CHAPTERS["tangent"], live=(example, chapter, more))
    assert entry.runs("quick", "example", "chapter") == [example]
    assert entry.runs("quick", "all", "chapter") == [example, chapter]
    assert entry.runs("quick", "all", "more") == [more]
    assert entry.runs("quick", "example", "more") == []
    assert entry.needs("quick") == ("small", "text")
    assert entry.needs("quick", "all", "chapter") == ("small",)
    assert chapters.chapter("tangent_more") is CHAPTERS["tangent"]


@pytest.mark.parametrize(
    ("given", "live"),
    [
        ({}, "example"), ({"model": "mini", "steps": 2}, "example"), ({"live": "all"}, "all"),
        ({"model": "mini_s"}, "all"), ({"init": "random"}, "all"), ({"suite": "paper"}, "all"),
        ({"model": "vitb32", "live": "example"}, "example"),
    ],
)  # fmt: skip
def test_everything_is_computed_where_nothing_is_recorded(given, live):
    assert Parameters(**given).live == live


def test_the_third_world_is_recorded_with_its_model_by_the_protocol():
    parts = {(c, p): w for c in CHAPTERS for p, w in CHAPTERS[c].parts.items() if "wordnet" in p}
    assert {c for c, part in parts if part == "wordnet"} == {*CHAPTERS}
    assert {work.changes["model"] for works in parts.values() for work in works} == {"minilm"}
    protocol = (ROOT / "book/protocol.md").read_text("utf-8").partition("(third-world)=")[2]
    said = re.findall(
        r"fine-tuning (?:tr(?:y|ies) )?([\d., and]+) times", " ".join(protocol.split())
    )
    plain, linearized, later = (
        [float(x) * 1e-4 for x in re.split(r", | and ", grid)] for grid in said
    )
    for part, experiment, grid in (
        ("wordnet_rates", "rate_search", later),  # by a dated change
        ("wordnet_budgets", "budgets", linearized),
    ):
        first, last = parts["tangent", part]
        assert last.methods == ("linearized",)
        rates = [[*work.names[experiment]["rates"]] for work in (first, last)]
        assert rates == [pytest.approx(plain), pytest.approx(grid)]
    (mlp,) = parts["tangent", "wordnet_rates_mlp"]
    assert [*mlp.names["rate_search"]["rates"]] == pytest.approx(plain)
    five = {
        name for works in parts.values() for work in works for name in work.names if work.seeds == 5
    }
    assert five >= {"single", "addition", "negation", "search_box", "cross_task"}


def test_opening_counts_the_runs_before_any_is_made(tmp_path, capsys):
    given = {"steps": 3, "store_root": tmp_path, "device": "cpu"}
    lab = chapters.open("linear_layers", "mini_xs", **given)
    told, runs = capsys.readouterr().err, outlook.outlook(lab, "linear_layers").own.runs
    assert runs >= 3 * len(lab.tasks)  # non-linear, linearized, attention
    assert f"Fine-tuning: mini_xs {runs} runs, 0 of them in the store." in told
    assert lab.chapter == "linear_layers" and not [*lab.store.configs("finetune")]
    chapters.open("linear_layers_more", Parameters(model="mini_xs", live="example", **given))
    assert "Nothing is fine-tuned here" in capsys.readouterr().err
    Lab("mini_xs", **given)
    assert "runs" not in capsys.readouterr().err


def test_what_cannot_be_opened_is_one_sentence():
    given = {"device": "cpu"}
    refuses("unknown chapter 'ctk': did you mean 'ctl'", chapters.open, "ctk", "mini", **given)
    refuses("attention, which", chapters.open, "linear_layers", "mini_convnext", **given)
    refuses("did you mean 'steps'", chapters.open, "ctl", "mini", step=3, **given)
    refuses("steps beside Parameters", chapters.open, "ctl", Parameters(**given), steps=3)
