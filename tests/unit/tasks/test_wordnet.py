"""The third world as it ships: classes, splits, near copies, and the script that makes it."""

import lzma

import pytest

from pretraining.wordnet import __main__ as script
from pretraining.wordnet import ship, source, tasks
from pretraining.wordnet.tasks import Class
from tasklab.storage import shipped
from tasklab.tasks import wordnet
from tests.helpers import refuses

ALL = (*wordnet.TASKS, wordnet.CONTROL)
ROWS = [(task, row) for task in ALL for row in wordnet.rows(task)]
there = pytest.mark.skipif(
    not (source.FOLDER / "data.noun").exists(), reason="wordnet-base is not installed"
)


def test_sixteen_tasks_have_classes_of_the_right_size():
    assert len(wordnet.TASKS) == 16 and len(set(ALL)) == 17
    assert set(wordnet.DEFAULT) < set(wordnet.TASKS) and len(wordnet.DEFAULT) == 8
    for task in ALL:
        names, labels = wordnet.classes(task), [row.label for row in wordnet.rows(task)]
        assert 8 <= len(names) <= 16 and len(set(names)) == len(names)
        counts = [labels.count(label) for label in range(len(names))]
        assert sum(counts) == len(labels)
        if task != wordnet.CONTROL:  # of the control's classes, 3,000 texts are drawn
            assert min(counts) >= tasks.LEAST and max(counts) <= tasks.MOST
            assert sum(count >= 60 for count in counts) >= 8, task


@pytest.mark.parametrize("task", ALL)
def test_a_hash_of_the_synset_decides_the_split(task):
    rows = wordnet.rows(task)
    parts = {split: wordnet.texts(task, split) for split in wordnet.SPLITS}
    assert {split: len(x) for split, (x, _) in parts.items()} == wordnet.sizes(task)
    for split, (x, y) in parts.items():
        assert list(zip(x, y, strict=True)) == [(r.text, r.label) for r in rows if r.split == split]
    hashes = [tasks.order("split", row.synset) for row in rows]
    order = {"train": 0, "validation": 1, "test": 2}
    ranked = [order[r.split] for _, r in sorted(zip(hashes, rows, strict=True))]
    assert ranked == sorted(ranked)
    assert len(parts["test"][0]) >= 500
    assert len(parts["train"][0]) == 0 if task == wordnet.CONTROL else len(parts["train"][0]) > 500


def test_texts_are_definitions_and_no_two_are_nearly_equal():
    synsets = [row.synset for _, row in ROWS]
    assert len(set(synsets)) == len(synsets)
    for _, row in ROWS:
        assert tasks.fit(row.text) and row.text == row.text.strip() and row.text[0] != '"'
    assert not tasks.alike([wordnet.words(row.text) for _, row in ROWS])


def test_near_copies_are_found_as_by_comparing_all_pairs():
    sets = [wordnet.words(row.text) for _, row in ROWS[:3000:5]]
    share = 0.4
    slow = {
        (i, j)
        for j, b in enumerate(sets)
        for i, a in enumerate(sets[:j])
        if len(a & b) >= share * len(a | b)
    }
    assert len(slow) > 5 and set(tasks.alike(sets, share)) == slow


def test_copies_within_a_class_leave_one_and_between_classes_none():
    def synset(offset, text):
        return source.Synset(offset, "noun", 3, "a", (), (), text)

    one, other = Class("A", "one", ()), Class("B", "other", ())
    rows = [
        (synset("1", "a small dog with long hair"), one),
        (synset("2", "a small Dog, with long hair"), one),
        (synset("3", "a river in the north of France"), one),
        (synset("4", "the river in a north of France"), other),
        (synset("5", "a tree with red leaves"), other),
    ]
    kept = [synset.offset for synset, _ in tasks.distinct(rows)]
    assert sorted(kept) in (["1", "5"], ["2", "5"])


@pytest.mark.parametrize(
    ("gloss", "definition"),
    [
        ('a hat; "his hat"; "her hat"', "a hat"),
        ('the letter "a"; first; "an a"- A. Poet', 'the letter "a"; first'),
        ('a hat; "it is', "a hat"),
        ("a hat; or a cap", "a hat; or a cap"),
    ],
)
def test_definitions_are_without_examples(gloss, definition):
    assert source.definition(gloss) == definition


def test_sets_of_tasks_are_drawn_by_hash():
    drawn = {size: tuple(map(tuple, some)) for size, some in ship.task_sets(wordnet.TASKS).items()}
    assert wordnet.sets() == drawn
    for size, some in drawn.items():
        assert all(len(set(one)) == size and set(one) < set(wordnet.TASKS) for one in some)


def test_unknown_names_and_damage_are_refused(tmp_path, monkeypatch):
    refuses("unknown task of the suite 'wordnet'", wordnet.classes, "Animal")
    refuses("unknown split", wordnet.texts, "Animals", "val")
    data = (wordnet.FOLDER / "Animals.xz").read_bytes()
    monkeypatch.setattr(wordnet, "FOLDER", tmp_path)
    wordnet.rows.cache_clear()
    (tmp_path / "Animals.xz").write_bytes(data[:-40])
    refuses("Reinstall tasklab|reinstall tasklab", wordnet.rows, "Animals")


def test_notice_and_checksums_ship():
    notice = shipped.content(wordnet.FOLDER / "NOTICE.txt").decode()
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in notice
    assert sum(file.stat().st_size for file in wordnet.FOLDER.iterdir()) < 3e6
    for file in wordnet.FOLDER.iterdir():
        shipped.content(file)


def test_the_protocol_has_the_sizes_that_ship(root):
    protocol = (root / "book/protocol.md").read_text("utf-8").partition("(third-world)=")[2]
    for task in ALL:
        of, name = wordnet.sizes(task), f"**{task}**" if task in wordnet.DEFAULT else task
        numbers = [len(wordnet.classes(task)), *(of[split] for split in wordnet.SPLITS)]
        name = "Verbs (control)" if task == wordnet.CONTROL else name
        assert f"| {name} | " + " | ".join(f"{n:,}" for n in numbers) + " | " in protocol, task


@pytest.fixture(scope="module")
def nouns():
    return source.read(source.FOLDER, "noun")


@there
def test_nothing_left_out_is_shipped_and_classes_are_subtrees(nouns):
    gone = {"n" + o for root in tasks.offsets(nouns, tasks.LEFT_OUT) for o in nouns.subtree(root)}
    usages = set(tasks.offsets(nouns, tasks.USAGES))
    table = {task: [one for one in tasks.table() if one.task == task] for task in wordnet.TASKS}
    for task, row in ROWS:
        if task == wordnet.CONTROL:
            continue
        assert row.synset not in gone
        assert not usages & set(nouns.synsets[row.synset[1:]].usage)
        roots = tasks.offsets(nouns, table[task][row.label].roots)
        assert any(row.synset[1:] in nouns.subtree(root) for root in roots)


@there
def test_an_inner_class_has_its_synsets_to_itself(nouns):
    found = tasks.innermost(nouns, tasks.table())
    assert found["02084071"].name == "dog" and found["02075296"].name == "wild carnivore"
    two = [Class("A", "one", ("dog:02084071",)), Class("B", "other", ("puppy:01322604",))]
    assert tasks.innermost(nouns, two)["01322604"].task == "B"
    refused = pytest.raises(ValueError, match="no synset of WordNet 3.0")
    with refused:
        tasks.innermost(nouns, [Class("A", "one", ("cat:02084071",))])


@there
def test_the_script_makes_the_shipped_files(tmp_path):
    script.make(tmp_path)
    names = {file.name for file in wordnet.FOLDER.iterdir()} - {"NOTICE.txt"}
    assert {file.name for file in tmp_path.iterdir()} == names
    for name in names:
        made, ours = ((folder / name).read_bytes() for folder in (tmp_path, wordnet.FOLDER))
        if name.endswith(".xz"):  # other versions of the library compress to other bytes
            made, ours = map(lzma.decompress, (made, ours))
        assert made == ours, name
