"""What a full-size reproduction lacks: bytes that follow from what is declared."""

import pytest

from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.cli.doctor import needs, readiness
from tasklab.machine import gib
from tasklab.models.zoo import spec
from tasklab.tasks.suites import paper_data_sets
from tests.decoded import keep

pytestmark = pytest.mark.usefixtures("bare")


def full(tmp_path, **more):
    settings = {"model": "vitb32", "suite": "paper", "preset": "full", "device": "cpu", "seeds": 2}
    return Parameters(store_root=tmp_path / "store", **{**settings, **more})


def steps(found):
    return {step: [one for one in found if one.step == step] for step in {n.step for n in found}}


def test_a_bare_and_a_full_machine(tmp_path):
    found = steps(needs.of(full(tmp_path), reachable=False))
    (weights,) = found["weights"]
    assert weights.bytes == pytest.approx(605_143_884, rel=0.001)  # OpenAI's file
    assert not weights.done
    decoded = next(one for one in found["images"] if one.what == "Cars, decoded")
    assert decoded.bytes == (8144 + 8041) * 224 * 224 * 3
    small = next(one for one in found["images"] if one.what == "MNIST, decoded")
    assert small.bytes == 70_000 * 28 * 28 * 3  # kept at its size
    assert len(found["images"]) == 2 * len(paper_data_sets())
    assert [one.what for one in found["vectors"]] == [f"{m}, 16 runs" for m in needs.TRAINED]
    assert [one.what for one in found["chapters"]] == list(needs.CHAPTERS)
    assert needs.total(found["vectors"]) == 48 * 4 * spec("vitb32").tower.parameters
    parameters = full(tmp_path, model="mini_xs", suite="mini")
    found = steps(needs.of(parameters, chapters=["tangent"], executed=["tangent"]))
    assert "images" not in found
    assert found["weights"][0].done and found["chapters"][0].done
    kept = {"Cars": 224, "MNIST": 28}  # small images are kept at their size
    for name, side in kept.items():
        keep(tmp_path / "decoded", name, train=side, val=side, test=side)
    images = needs.of(full(tmp_path), chapters=(), reachable=False)
    assert [one.what for one in images if one.done] == [*kept]


@pytest.mark.parametrize("name", paper_data_sets())
def test_splits_have_the_papers_sizes(name):
    sizes, entry = needs.sizes(name), paper_data_sets()[name]["sizes"]
    assert sizes["test"] + (sizes["val"] if name == "ImageNet" else 0) == entry["test"]
    if name == "EuroSAT":
        assert sizes == {"train": 21600, "val": 2700, "test": 2700}
    elif name != "ImageNet":
        assert sizes["train"] + sizes["val"] == entry["train"]
        assert sizes["val"] == min(5000, entry["train"] // 10)


def test_the_doctor_lists_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(readiness, "hub_answer", lambda *model: "no network")
    main(["doctor", "--paper", "vitb32", "--store-root", str(tmp_path / "store")])
    told = capsys.readouterr().out.partition("What `tasklab paper vitb32` lacks")[2]
    published = full(tmp_path, vectors="published:orthoreg", seeds=None)
    size = needs.total(needs.of(published, reachable=False))
    assert f"missing: {gib(size)}\n" in told
    assert "nonlinear, 8 published" in told and "all, in the store" in told
    assert size > (24 + 32) * 4 * spec("vitb32").tower.parameters


def test_the_papers_eight_have_the_size_that_is_known(tmp_path):
    found = steps(needs.of(full(tmp_path), chapters=(), reachable=False))["images"]
    sizes = {one.what: one.bytes for one in found if "decoded" not in one.what}
    assert sum(sizes.values()) - sizes["ImageNet"] == pytest.approx(16.7e9, rel=0.1)
    assert sizes["GTSRB"] < sizes["DTD"] < sizes["RESISC45"] < sizes["SUN397"]
    guessed = [one.what for one in found if one.note.startswith("a guess; from")]
    assert guessed == ["GTSRB", "RESISC45", "SUN397"]
