"""The second world as it ships: licences, splits, labels, sizes, and sets of tasks."""

import pytest
import torch

from pretraining.icons import clean, names, source
from tasklab import mini
from tasklab.bench.lab import Lab
from tasklab.errors import LeftOutError
from tasklab.evidence.experiments.editing import groups_of
from tasklab.tasks import drawn, icons
from tasklab.tasks.suites import pairs_of, suite
from tests.helpers import refuses

TASKS = [one["name"] for one in icons.sources()["tasks"]]
SPLIT_BY_NAMES = "DrawnBy"  # its classes are the sets


def _of(task, *splits):
    sizes, said = icons.entry(task)["sizes"], icons.drawings()[task]
    assert len(said) == sum(sizes.values())
    starts = {s: sum(sizes[o] for o in icons.SPLITS[:i]) for i, s in enumerate(icons.SPLITS)}
    return [name for s in splits for name in said[starts[s] : starts[s] + sizes[s]]]


def test_drawings_have_licences_and_tasks_classes():
    sets = icons.sources()["sets"]
    assert all(one["licence"] in source.LICENCES and one["author"] for one in sets.values())
    assert not set(sets) & source.SETS_LEFT_OUT
    assert {name.split(":")[0] for said in icons.drawings().values() for name in said} == set(sets)
    world = suite("icons")
    assert len(world.tasks) == 24 and len(TASKS) == 25
    images = drawn.images_of(world)
    assert all(len(task.classes) >= 12 for task in world.tasks)
    assert images.size(world.control.name, "test") > 1800
    assert sum(images.size(task.name, "test") >= 800 for task in world.tasks) >= 12
    assert sum(file.stat().st_size for file in icons.FOLDER.iterdir()) < 6e6
    sets, known = icons.sets(), set(TASKS)
    counts = {size: len(some) for size, some in sets.items()}
    assert counts == {2: 20, 4: 20, 8: 24, 14: 20, 20: 20}
    for size, some in sets.items():
        assert all(len(set(one)) == size and set(one) <= known for one in some)
    assert icons.usual() == sets[8][0]


@pytest.mark.parametrize("task", TASKS)
def test_splits(task):
    entry, images = icons.entry(task), drawn.images_of(suite("icons"))
    parts = {split: images.load(task, split) for split, n in entry["sizes"].items() if n}
    for split, (x, y) in parts.items():
        assert x.dtype == torch.uint8 and x.shape == (entry["sizes"][split], 3, 32, 32)
        assert y.dtype == torch.int64 and set(y.tolist()) <= set(range(len(entry["classes"])))
    assert torch.bincount(parts["test"].y).min() >= 10
    others = [x for split, (x, _) in parts.items() if split != "test"]
    grey = [clean.grey(x.numpy()) for x in (parts["test"].x, torch.cat(others))]
    assert not clean.copies(*grey).any()
    families = {prefix: one["family"] for prefix, one in icons.sources()["sets"].items()}

    def hand(name):
        prefix, drawing = name.split(":")
        return names.concept(drawing) if task == SPLIT_BY_NAMES else families[prefix]

    sides = [set(map(hand, _of(task, *splits))) for splits in (("test",), ("train", "val"))]
    assert not sides[0] & sides[1]


def test_a_damaged_file_is_said(tmp_path, monkeypatch):
    for name in (icons.TABLE, "Arrows.xz"):
        (tmp_path / name).write_bytes((icons.FOLDER / name).read_bytes())
    other = (icons.FOLDER / "Food.xz").read_bytes()
    assert len(icons.whole("Arrows", tmp_path)[1]) == sum(icons.entry("Arrows")["sizes"].values())
    icons.whole.cache_clear()
    for data in (other, b""):
        (tmp_path / "Arrows.xz").write_bytes(data)
        refuses("reinstall tasklab|Reinstall tasklab", icons.whole, "Arrows", tmp_path)


def test_labs_take_and_merge_the_tasks_drawn_beforehand(tmp_path):
    lab = Lab("icons_s", init="random", steps=2, store_root=tmp_path, device="cpu")
    assert lab.suite.names == icons.usual() and lab.sizes() == (8,) and lab.family == {}
    assert len(pairs_of(lab.suite)) == 4
    x, _ = drawn.images_of(lab.suite).load("Arrows", "val", n=4)
    assert lab.clip.text(["arrow left", "arrow right"]).shape == (2, 128)
    encoder = lab.clip.encoder
    assert encoder(encoder.params, encoder.preprocess(x)).shape == (4, 128)
    some = Lab("mini_xs", suite="icons", tasks=icons.sets()[2][0], steps=2, store_root=tmp_path)
    assert some.suite.names == icons.sets()[2][0] and not some.suite.sets
    assert groups_of(lab, [4]) == [[*icons.usual()[:4]], [*icons.usual()[4:]]]
    whole = Lab("icons_s", steps=2, store_root=tmp_path, device="cpu", tasks="all")
    assert len(whole.suite.names) == 24 and whole.sizes() == (2, 4, 8, 14, 20)
    groups = [[*one] for size in (14, 2) for one in icons.sets()[size]]
    assert groups_of(whole, [14, 2]) == groups
    assert groups_of(whole, [1])[23] == [whole.suite.names[23]]
    lab = Lab("icons_s", steps=2, store_root=tmp_path, device="cpu")
    terms, there = lab.relative_terms("random")
    assert terms.init == "random" and there.names == pairs_of(lab.suite)[0]
    with pytest.raises(LeftOutError, match="icons_s has no relative of the role 'small'"):
        lab.relative("small")
    refuses("unknown role 'smal'", lab.relative, "smal")
    large = Lab("icons", steps=2, store_root=tmp_path, device="cpu")
    assert len(large.clip.encoder.blocks) == 6 and large.suite.names == lab.suite.names
    if mini.weights_path("icons_s_seed1").exists():
        pytest.skip("they are here")
    refuses("pretraining.queue icons_s_seed1", Lab, "icons_s_seed1", store_root=tmp_path)
