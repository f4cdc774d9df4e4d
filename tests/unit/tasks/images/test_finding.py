"""Data sets in every format that they come in, and the ways in which copies differ."""

import itertools
import json
import time
import types
import urllib.error
from collections import Counter
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pytest

from tasklab.__main__ import main
from tasklab.storage import fetching
from tasklab.tasks import own, suites
from tasklab.tasks.images import checks, finding, formats, layouts
from tasklab.tasks.images.loader import DecodedImages
from tests import layouts as made_by
from tests.helpers import refuses
from tests.layouts import picture, write

CLASSES = 4
TRAIN, TEST = 40, 12  # images of a reduced data set


@pytest.fixture(autouse=True)
def reduced(tmp_path, monkeypatch):
    """Cut every data set of the papers down to four classes and a few images."""
    entries = json.loads(suites._PAPER.read_text())
    for entry in entries["tasks"]:
        if entry["name"] not in ("ImageNet", "MNIST", "SVHN"):
            entry["classes"] = entry["classes"][:CLASSES]
            entry["aliases"] = entry.get("aliases", [[]] * CLASSES)[:CLASSES]
        shrunk = {"train": TRAIN, "test": TEST, "val": TEST}
        entry["sizes"] = {name: shrunk[name] for name in entry["sizes"]}
        if "unused_val" in entry:
            entry["unused_val"] = TEST
        if "unsplit" in entry:
            entry["unsplit"] = TRAIN + 2 * TEST
        for other in entry.get("other", []):
            other |= {"train": 3 * TRAIN}
    file = tmp_path / "reduced.json"
    file.write_text(json.dumps(entries))
    monkeypatch.setattr(suites, "_PAPER", file)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for cache in (suites.paper_data_sets, suites._suite, checks._aliases):
        cache.cache_clear()
    yield
    for cache in (suites.paper_data_sets, suites._suite, checks._aliases):
        cache.cache_clear()


def own_task(folder, classes=("a", "b")):
    source = suites.Source(folder=folder)
    return suites.Task(
        name="own", classes=tuple(classes), templates=("{}",), stand_in_for="", source=source
    )


def task(name):
    return suites.paper_task(suites.paper_data_sets()[name])


def some(count, classes=CLASSES):
    return made_by.some(count, classes)


def hub_file(file, labels, names, *, grey=int):
    images = [{"bytes": picture(grey(label)), "path": None} for label in labels]
    made_by.parquet(file, images, labels, names)


def hub_copy(root, names, sizes, **more):
    for split, count in sizes.items():
        hub_file(root / "data" / f"{split}-00000-of-00001.parquet", some(count), names, **more)


def greys(split):
    """Return what the images show, in order."""
    found = []
    for chunk in range(len(split.bounds) - 1):
        rows = set(range(*split.bounds[chunk : chunk + 2]))
        for _, image in split.read(chunk, rows):
            found.append(round(np.asarray(image).mean() / 20))
    return found


SIZES = {"train": TRAIN, "test": TEST}


def test_the_papers_data_sets():
    suites._PAPER = Path(suites.__file__).with_name("paper_tasks.json")
    suites.paper_data_sets.cache_clear()
    paper = suites.suite("paper")
    assert paper.names == tuple("Cars DTD EuroSAT GTSRB MNIST RESISC45 SUN397 SVHN".split())
    assert [len(t.classes) for t in (*paper.tasks, paper.control)] == [
        196, 47, 10, 43, 10, 45, 397, 10, 1000,
    ]  # fmt: skip
    sizes = {name: entry["sizes"] for name, entry in suites.paper_data_sets().items()}
    assert sizes["Cars"] == {"train": 8144, "test": 8041}
    assert sizes["DTD"] == {"train": 3760, "test": 1880}
    assert sizes["SUN397"] == {"train": 19850, "test": 19850}
    assert len(paper["ImageNet"].templates) == 80 and len(paper["RESISC45"].templates) == 18
    assert paper["MNIST"].templates == ('a photo of the number: "{}".',)


@pytest.mark.parametrize("name", ["Cars", "DTD", "RESISC45", "SVHN", "GTSRB"])
def test_parquet_files_as_the_hub_has_them(name, tmp_path):
    entry = task(name)
    hub_copy(tmp_path / suites.paper_data_sets()[name]["folders"][0], entry.classes, SIZES)
    found = finding.find(entry, tmp_path)
    assert {k: len(split) for k, split in found.splits.items()} == SIZES
    assert found.splits["test"].labels.tolist() == some(TEST) == greys(found.splits["test"])
    assert found.origin["format"] == "parquet"


@pytest.mark.parametrize("name", ["RESISC45", "SUN397"])
def test_labels_of_another_order_are_renumbered_by_name(name, tmp_path):
    entry = task(name)
    other = [one.replace(" ", "_").upper() for one in reversed(entry.classes)]
    hub_copy(tmp_path / name, other, SIZES, grey=lambda label: CLASSES - 1 - label)
    found = finding.find(entry, tmp_path).splits["train"]
    assert found.labels.tolist() == greys(found)
    assert found.labels.tolist() == [CLASSES - 1 - label for label in some(TRAIN)]


def test_other_classes_are_an_error_that_shows_both(tmp_path):
    hub_copy(tmp_path / "resisc45", ["airplane", "airport", "baseball", "pier"], SIZES)
    refuses("'baseball', 'pier'; .*: 'baseball diamond'", finding.find, task("RESISC45"), tmp_path)


def test_names_may_lie_beside_the_files(tmp_path):
    entry, folder = task("RESISC45"), tmp_path / "resisc45"
    hub_copy(folder, None, SIZES)
    refuses("do not name their classes.*classes.txt", finding.find, entry, tmp_path)
    names = "".join(f"          '{i}': {n}\n" for i, n in enumerate(reversed(entry.classes)))
    (folder / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\n"
        f"  - name: label\n    dtype:\n      class_label:\n        names:\n{names}---\ntext\n"
    )
    assert finding.find(entry, tmp_path).splits["test"].labels[0] == CLASSES - 1
    (folder / "classes.txt").write_text("\n".join(entry.classes) + "\n")
    (folder / "README.md").unlink()
    assert finding.find(entry, tmp_path).splits["test"].labels[0] == 0


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([-1] * TEST, "from -1 to -1; they should be from 0 to 3. All are -1, which is hidden"),
        ([-1, *some(TEST - 1)], "from -1 to 3; they should be from 0 to 3. 1 of 12 are -1"),
        ([1 + label for label in some(TEST)], "from 1 to 4; .* 3. They seem to be counted from 1"),
        ([0, 255] * (TEST // 2), r"test in .*dtd go from 0 to 255; they should be from 0 to 3\.$"),
    ],
)
def test_labels_out_of_range_are_an_error(labels, told, tmp_path):
    hub_copy(tmp_path / "dtd", task("DTD").classes, {"train": TRAIN})
    hub_file(
        tmp_path / "dtd" / "data" / "test.parquet", labels, task("DTD").classes, grey=lambda _: 0
    )
    refuses(told, lambda: finding.find(task("DTD"), tmp_path))


def test_a_split_that_is_missing_is_named(tmp_path):
    hub_copy(tmp_path / "svhn", "0123456789", {"train": TRAIN})
    refuses(
        "train 40 images; .* Of split test, no images with their classes",
        lambda: finding.find(task("SVHN"), tmp_path),
    )
    hub_copy(tmp_path / "imagenet", task("ImageNet").classes, {"train": TRAIN})
    refuses("Of split val, no images with", lambda: finding.find(task("ImageNet"), tmp_path))


@pytest.mark.parametrize("name", ["RESISC45", "EuroSAT", "DTD"])
def test_validation_images_do_not_stand_in_for_the_test(name, tmp_path):
    """They are as many: 6,300 of RESISC45, 2,700 of EuroSAT, 1,880 of DTD."""
    sizes = {"train": TRAIN, "validation": TEST}
    if name == "DTD":
        suites.paper_data_sets()[name]["sizes"] = {"train": TRAIN + TEST, "test": TEST}
    hub_copy(tmp_path / name, task(name).classes, sizes)
    refuses("Of split test, no images with", lambda: finding.find(task(name), tmp_path))


def test_the_other_split_of_sun397_is_an_error_that_shows_both(tmp_path):
    sizes = {"train": 3 * TRAIN, "validation": 15, "test": 30}
    hub_copy(tmp_path / "sun397", task("SUN397").classes, sizes)
    text = refuses("", lambda: finding.find(task("SUN397"), tmp_path))
    assert "train 120, val 15, test 30" in text and "the papers' has train 40, test 12" in text
    assert "70:10:20 split of TensorFlow Datasets" in text


@pytest.mark.parametrize("form", ["parquet", "torchvision", "folders", "protocol"])
def test_dtds_validation_images_are_trained_on(form, tmp_path):
    entry, half = task("DTD"), TRAIN // 2
    sizes, root = {"train": half, "val": half, "test": TEST}, tmp_path / "dtd"
    if form == "parquet":
        hub_copy(root, entry.classes, {"train": half, "validation": half, "test": TEST})
    elif form == "torchvision":
        made_by.dtd(tmp_path, sizes, entry.classes)
    else:  # of the protocol, test images are in `val`
        folders = {"train": "train", "val": "train", "test": "val"} if form == "protocol" else {}
        for split, count in sizes.items():
            for i, label in enumerate(some(count)):
                file = f"{entry.classes[label]}/{split}{i}.png"
                write(root / folders.get(split, split) / file, label)
    found = finding.find(entry, tmp_path)
    assert {k: len(split) for k, split in found.splits.items()} == SIZES
    assert greys(found.splits["train"]) == found.splits["train"].labels.tolist()
    assert Counter(found.splits["test"].labels.tolist()) == Counter(some(TEST))


@pytest.mark.parametrize(
    ("name", "file", "layout"),
    [
        ("DTD", "dtd/dtd/labels.txt", "dtd/dtd/labels/"),
        ("Cars", "Stanford_Cars/cars_annos.mat", "devkit/"),
        ("MNIST", "mnist/train-images.idx3-ubyte", "MNIST/raw/ with train-images-idx3-ubyte"),
        ("MNIST", "mnist/raw/train-images-idx3-ubyte.gz", "t10k, unpacked"),
        ("GTSRB", "GTSRB/GTSRB/Training/00000/a.ppm", "GT-final_test.csv"),
        ("ImageNet", "imagenet/val/ILSVRC2012_val_00000001.JPEG", "val/<wnid>/"),
        ("SVHN", "svhn/notes.parquet", "train_32x32.mat"),
    ],
)
def test_a_folder_without_a_known_layout_is_named(name, file, layout, tmp_path):
    write(tmp_path / file, 1)
    text = refuses("", lambda: finding.find(task(name), tmp_path))
    assert f"found {tmp_path / file.partition('/')[0]}, but no known layout in it" in text
    assert layout in text and "--fetch" in text and "not on this machine" not in text


def test_names_of_folders_are_compared_without_case_and_one_level_down(tmp_path):
    hub_copy(tmp_path / "DTD", task("DTD").classes, SIZES)
    assert finding.find(task("DTD"), tmp_path).folder == tmp_path / "DTD"
    for i, label in enumerate(some(TRAIN + 2 * TEST)):
        word = suites.paper_data_sets()["EuroSAT"]["aliases"][label][0]
        write(tmp_path / "EuroSAT" / "EuroSAT_RGB" / word / f"{i}.jpg", label, "JPEG")
    found = finding.find(task("EuroSAT"), tmp_path)
    assert found.folder == tmp_path / "EuroSAT" / "EuroSAT_RGB"
    for i, label in enumerate(some(TRAIN)):
        folder = task("RESISC45").classes[label].replace(" ", "_")
        write(tmp_path / "resisc45" / "NWPU-RESISC45" / folder / f"{i}.jpg", label)
    refuses("40 images; .* train", finding.find, task("RESISC45"), tmp_path)


def backwards(label):
    return CLASSES - 1 - label


PLACES = ["alley", "airport_terminal", "airplane_cabin", "abbey"]
OWN_FORMATS = {
    "Cars": lambda at: made_by.cars(at, SIZES, [*reversed(task("Cars").classes)], grey=backwards),
    "GTSRB": lambda at: made_by.gtsrb(at, SIZES, CLASSES),
    "MNIST": lambda at: made_by.mnist(at, SIZES, CLASSES),
    "RESISC45": lambda at: made_by.resisc(
        at, {**SIZES, "val": 9}, [one.replace(" ", "_") for one in task("RESISC45").classes]
    ),
    "SUN397": lambda at: made_by.sun(at, SIZES, PLACES, grey=backwards),
    "SVHN": lambda at: made_by.svhn(at, SIZES, CLASSES),
}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("name", OWN_FORMATS)
def test_labels_and_images_in_the_formats_of_the_data_sets_own(name, within, tmp_path):
    """Archives lie where torchvision puts them: in the folder of all data sets, or one below."""
    folder = tmp_path / suites.paper_data_sets()[name]["folders"][0]
    OWN_FORMATS[name](folder if within or name not in ("Cars", "GTSRB", "MNIST") else tmp_path)
    found = finding.find(task(name), tmp_path).splits
    assert {k: len(split) for k, split in found.items()} == SIZES
    for split in found.values():
        assert split.labels.tolist() == greys(split) and len({*greys(split)}) == CLASSES
    if name == "SUN397":
        (folder / "Testing_01.txt").unlink()
        refuses("has no Testing_01.txt", finding.find, task(name), tmp_path)


def test_what_torchvision_does_not_read_is_told_with_what_it_reads(tmp_path):
    for split, image in itertools.product(("Final_Training", "Final_Test"), ("0.ppm", "1.ppm")):
        write(tmp_path / "gtsrb" / "GTSRB" / split / "Images" / image, 1)
    told = refuses("GTSRB/Training/<class>/ .GTSRB-Training_fixed.zip.", finding.find,
                   task("GTSRB"), tmp_path)  # fmt: skip
    assert "they look like splits" in told and "Of its archive, this is read: gtsrb/GTSRB" in told


@pytest.mark.parametrize("name", ["Cars", "SUN397"])
def test_downloads_that_are_gone_are_said_to_be(name, tmp_path):
    refuses("original download .* no longer exists", lambda: finding.find(task(name), tmp_path))


def test_eurosat_without_splits_and_with_its_own_validation(tmp_path):
    entry = task("EuroSAT")
    words = [names[0] for names in suites.paper_data_sets()["EuroSAT"]["aliases"]]
    assert words[0] == "AnnualCrop"
    for i, label in enumerate(some(TRAIN + 2 * TEST)):
        write(tmp_path / "eurosat" / "2750" / words[label] / f"{i}.jpg", label, "JPEG")
    parts = finding.plan(entry, finding.find(entry, tmp_path))
    assert {k: len(part.rows) for k, part in parts.items()} == {**SIZES, "val": TEST}
    assert sorted(np.concatenate([part.rows for part in parts.values()])) == list(range(64))

    for split, count in {**SIZES, "val": TEST}.items():
        for i, label in enumerate(some(count)):
            write(tmp_path / "b" / "EuroSAT_splits" / split / words[label] / f"{i}.png", label)
    found = finding.find(entry, tmp_path / "b")
    parts = finding.plan(entry, found)
    assert {k: len(part.rows) for k, part in parts.items()} == {**SIZES, "val": TEST}
    assert parts["val"].split is found.splits["val"]


def test_imagenet_in_folders_of_synsets(tmp_path):
    from timm.data import ImageNetInfo

    suites.paper_data_sets()["ImageNet"]["sizes"] = {"test": 1000}
    for label, synset in enumerate(ImageNetInfo().label_names()):
        write(tmp_path / "imagenet" / "val" / synset / "a.JPEG", label % 10)
    write(tmp_path / "imagenet" / "train" / "train.parquet", 0)  # an error, were it looked at
    control = task("ImageNet")
    found = finding.find(control, tmp_path)
    assert found.splits["test"].labels.tolist() == list(range(1000))
    parts = finding.plan(control, found)
    assert {k: len(part.rows) for k, part in parts.items()} == {"val": 100, "test": 900}


@pytest.mark.parametrize("hidden", [TEST, 3 * TEST])
def test_imagenet_as_the_hub_has_it(hidden, tmp_path):
    control, root = task("ImageNet"), tmp_path / "imagenet-1k" / "data"
    hub_copy(root.parent, control.classes, {"train": TRAIN, "validation": TEST})
    hub_file(root / "test.parquet", [-1] * hidden, control.classes, grey=lambda _: 9)
    found = finding.find(control, tmp_path)
    assert list(found.splits) == ["test"]
    assert greys(found.splits["test"]) == found.splits["test"].labels.tolist() == some(TEST)


def imagenets_names(kind):
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    whole = [info.label_name_to_description(wnid) for wnid in info.label_names()]
    return {
        "wnid": info.label_names(),
        "wordnet": whole,
        "first word": [name.partition(",")[0] for name in whole],
        "open_clip": list(task("ImageNet").classes),
    }[kind]


@pytest.mark.parametrize("kind", ["wnid", "wordnet", "first word", "open_clip"])
def test_imagenet_in_another_order_is_renumbered_by_name(kind):
    control, names = task("ImageNet"), imagenets_names(kind)
    assert checks.label_order(control, names).tolist() == list(range(1000))
    order = np.random.default_rng(0).permutation(1000)
    found = checks.label_order(control, [names[label] for label in order])
    alike = {label for label in range(1000) if names.count(names[label]) > 1}
    assert sorted(found) == list(range(1000))
    assert all(a == b or {a, b} <= alike for a, b in zip(found, order, strict=True))
    names[0], names[1] = names[1], names[0]
    assert checks.label_order(control, names).tolist() == [1, 0, *range(2, 1000)]


def test_names_of_imagenet_must_be_in_their_places():
    control, names = task("ImageNet"), list(task("ImageNet").classes)
    names[5], names[6] = "electric rey", "sting ray"
    assert checks.label_order(control, names).tolist() == list(range(1000))
    names[5], names[6] = names[6], names[5]
    refuses("Only there: 'sting ray', 'electric rey'", checks.label_order, control, names)
    names[5], names[6] = names[6], names[5]
    names[0], names[1] = names[1], names[0]
    refuses("Only there: 'electric rey', 'sting ray'", checks.label_order, control, names)


def test_only_the_wanted_configuration_and_splits_are_read(tmp_path):
    for config, count in (("cropped_digits", TRAIN), ("full_numbers", 5)):
        for split, size in (("train", count), ("test", TEST), ("extra", 7)):
            hub_file(tmp_path / "svhn" / config / f"{split}.parquet", some(size), "0123456789")
    found = finding.find(task("SVHN"), tmp_path).splits
    assert {k: len(split) for k, split in found.items()} == SIZES


def test_the_hubs_cache_is_searched_and_its_revision_recorded(tmp_path):
    base = tmp_path / "hub" / "datasets--tanganke--dtd"
    hub_copy(base / "snapshots" / "abc123", task("DTD").classes, SIZES)
    hub_copy(base / "snapshots" / "aaa000", task("DTD").classes, {"train": 3, "test": 2})
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("abc123")
    found = finding.find(task("DTD"))
    assert found.origin["hub"] == "tanganke/dtd" and found.origin["revision"] == "abc123"


def test_all_that_is_missing_is_said_at_once_and_soon(tmp_path):
    hub_copy(tmp_path / "dtd", task("DTD").classes, {"train": 7, "test": TEST})
    began = time.perf_counter()
    lines = DecodedImages(suite=suites.suite("paper"), root=tmp_path).missing()
    assert time.perf_counter() - began < 5
    assert [line.partition(":")[0] for line in lines] == list(suites.paper_data_sets())
    assert "this copy has train 7, test 12" in lines[1]
    assert all("--fetch" in line for line in (lines[0], *lines[2:]))


def test_validation_images_are_those_of_the_papers_protocol():
    """`random_split` of the protocol asserts this number for MNIST, seed 0."""
    labels = np.zeros(60000, dtype=np.int64)
    train = formats.Split("archive", ("x",), labels, None, (0, 60000))
    test = formats.Split("archive", ("x",), labels[:9], None, (0, 9))
    found = finding.DataSet(Path(), {"train": train, "test": test}, {})
    parts = finding.plan(task("MNIST"), found)
    assert parts["train"].rows[0] == 36044
    assert [len(parts[k].rows) for k in ("train", "val", "test")] == [55000, 5000, 9]
    assert not set(parts["train"].rows) & set(parts["val"].rows)


class Hub:
    """A hub with given files by revision."""

    def __init__(self, files):
        self.files, self.fetched = files, []

    def listing(self, repository, revision, kind):
        if revision not in self.files:
            raise fetching.UnreachableError(repository, ConnectionError("404: none such\nmore"))
        return {file: fetching.Remote(1, None) for file in self.files[revision]}

    def fetch(self, repository, file, revision, kind):
        self.fetched.append((repository, file, revision, kind))
        return Path("/somewhere", file)


@pytest.fixture
def hub(monkeypatch):
    made = Hub({})
    monkeypatch.setattr(finding, "unreachable", lambda: None)
    monkeypatch.setattr(fetching, "listing", made.listing)
    monkeypatch.setattr(fetching, "fetch", made.fetch)
    return made


def test_fetching_takes_parquet_files_of_the_wanted_splits_only(hub):
    hub.files[None] = ["README.md", "mnist/train.parquet", "mnist/test.parquet", "x/test.parquet"]
    assert finding.fetch(task("MNIST")) == Path("/somewhere")
    files = ["mnist/train.parquet", "mnist/test.parquet", "README.md"]
    assert finding.size(task("MNIST")) == 3
    assert hub.fetched == [("ylecun/mnist", file, None, "dataset") for file in files]
    pinned = "9c4afd6174afa3974f209a0ef099dbbe244dfd27"
    hub.files[pinned] = ["data/train-0.parquet"]
    finding.fetch(task("SUN397"))
    assert hub.fetched[3][2] == pinned


def test_words_in_paths_and_of_splits_that_are_not_used():
    shards = [f"data/{s}-{i:05d}-of-00003.parquet" for s in SHARDS for i in range(3)]
    own = finding._needed(suites.paper_data_sets()["ImageNet"])
    assert finding.wanted_files(shards, None, own) == [*shards[3:6], "README.md"]
    for name, splits in (("RESISC45", (0, 2)), ("DTD", (0, 1, 2)), ("EuroSAT", (0, 1, 2))):
        wanted = [shard for i in splits for shard in shards[3 * i : 3 * i + 3]]
        found = finding.wanted_files(shards, None, finding._needed(suites.paper_data_sets()[name]))
        assert found == [*wanted, "README.md"]
    assert finding.wanted_files(shards[:6], None, {"train", "test"}) == [*shards[:6], "README.md"]
    splits = {
        "data/train-00000-of-00001-4a74bd47280fd95b.parquet": "train",
        "cropped_digits/svhn-test.parquet": "test",
        "default/validation/0000.parquet": "val",
        "data/contrast-00000-of-00001.parquet": None,
        "data/latest.parquet": None,
    }
    assert {path: layouts.split_of(path) for path in splits} == splits


SHARDS = ("train", "validation", "test")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Take the network away; return the list of what was asked."""
    asked = []

    def ask(request, timeout):
        asked.append(request.full_url)
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://mirror")
    monkeypatch.setattr("urllib.request.urlopen", ask)
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "cache"))
    return asked


def test_without_a_network_it_is_asked_for_once(offline, tmp_path, capsys):
    refuses("pets cannot be fetched: the hub .http://mirror.*no net", own.from_hub, "me/pets")
    hub_copy(tmp_path / "dtd", task("DTD").classes, SIZES)
    command = ["decode", "paper", "--fetch", "--model", "mini", "--data-root", str(tmp_path)]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "nothing was fetched: the hub (http://mirror) cannot be reached" in told
    assert all(f"{name}: not on" in told for name in suites.paper_data_sets() if name != "DTD")
    assert "DTD: " not in told and offline == ["http://mirror"] * 2


def test_an_answer_of_the_hub_is_a_refusal_too(offline, monkeypatch):
    def refuse(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 401, "Unauthorized", {}, None)

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert finding.unreachable() is None
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in finding.unreachable()


def test_all_that_cannot_be_fetched_is_in_one_report(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "cache"))
    chosen = ["--task", "Cars", "--task", "ImageNet", "--task", "DTD"]
    assert main(["decode", "paper", "--fetch", "--model", "mini", *chosen]) == 2
    told = capsys.readouterr().err
    assert all(f"{name} cannot be fetched" in told for name in ("Cars", "DTD", "ImageNet"))
    assert "asks for a login" in told and "no longer exists" not in told


def test_data_sets_of_scripts_come_from_the_hubs_own_copy(hub):
    hub.files[None] = ["README.md", "dtd.py", "data/train.zip"]
    refuses("404", lambda: finding.fetch(task("DTD")))
    hub.files[finding.CONVERTED] = ["default/train/0000.parquet", "default/test/0000.parquet"]
    finding.fetch(task("DTD"))
    assert hub.fetched[0][2] == "refs/convert/parquet"
    hub.files[finding.CONVERTED] = ["dtd.py"]
    refuses("scripts are not run", lambda: finding.fetch(task("DTD")))
    assert finding.size(task("DTD")) is None


def test_a_login_that_is_lacking_is_named(hub, monkeypatch):
    def refuse(*_, **__):
        answer = types.SimpleNamespace(status_code=403)
        error = OSError("Cannot access gated repo")
        error.response = answer  # type: ignore[attr-defined]
        raise fetching.UnreachableError("ILSVRC/imagenet-1k", error)

    hub.files[None] = ["data/validation-0.parquet"]
    monkeypatch.setattr(fetching, "fetch", refuse)
    refuses("403 Forbidden.*login", finding.fetch, task("ImageNet"))


def test_a_task_of_a_folder(tmp_path):
    for i, label in enumerate(some(30, 3)):
        write(tmp_path / "pets" / ["a_cat", "dog", "newt"][label] / f"{i}.png", label)
    (tmp_path / "pets" / "__MACOSX").mkdir()
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("not an image")
    pets = own.from_folder(tmp_path / "pets")
    assert (pets.name, pets.classes) == ("pets", ("a cat", "dog", "newt"))
    found = finding.find(pets)
    parts = finding.plan(pets, found)
    assert [len(parts[k].rows) for k in ("train", "val", "test")] == [22, 2, 6]
    assert greys(found.splits["all"]) == found.splits["all"].labels.tolist()


@pytest.mark.parametrize(("each", "classes"), [(1, 2), (1, 3), (1, 10), (2, 2)])
def test_each_class_has_an_image_to_train_on(each, classes, tmp_path):
    for i in range(each * classes):
        write(tmp_path / "x" / "abcdefghij"[i % classes] / f"{i}.png", i % classes)
    made = own.from_folder(tmp_path / "x")
    if each == 1:
        refuses(f"{classes} images of {classes} classes", finding.plan, made, finding.find(made))
    else:
        parts = finding.plan(made, finding.find(made))
        assert sorted(parts["train"].labels) == [0, 1]
        rows = np.concatenate([part.rows for part in parts.values()])
        assert sorted(rows) == list(range(each * classes))


@pytest.mark.parametrize("split", ["all", "train"])
def test_a_class_that_the_draw_leaves_out_is_taught_in_exchange(split):
    made, drawn = own_task(Path()), finding._shuffled(30)
    for place in (0, 15, 24, 29):  # in train, validation or test
        labels = np.zeros(30, dtype=np.int64)
        labels[drawn[place]] = 1
        whole = formats.Split("archive", ("x",), labels, None, (0, 30))
        splits = {split: whole} if split == "all" else {split: whole, "test": whole}
        parts = finding.plan(made, finding.DataSet(Path(), splits, {}))
        rows = np.concatenate([p.rows for k, p in parts.items() if split == "all" or k != "test"])
        assert (parts["train"].labels == 1).sum() == 1 and sorted(rows) == list(range(30))
        assert (rows.tolist() == drawn.tolist()) == (place < len(parts["train"].rows))


def test_a_folder_with_splits_and_names_of_ones_own(tmp_path):
    for split, count in (("train", 20), ("val", 6), ("test", 4)):
        for i, label in enumerate(some(count, 2)):
            write(tmp_path / split / str(label) / f"{i}.png", label)
    made = own.from_folder(tmp_path, name="night", classes=["an owl", "a bat"], templates=["{}!"])
    assert (made.classes, made.templates) == (("an owl", "a bat"), ("{}!",))
    like_clip = [lambda c: f"itap of a {c}.", "{}!"]
    assert own.from_folder(tmp_path, templates=like_clip).templates == ("itap of a {}.", "{}!")
    parts = finding.plan(made, finding.find(made))
    assert [len(parts[k].rows) for k in ("train", "val", "test")] == [20, 6, 4]
    refuses("has 2 classes .0, 1., not 3", own.from_folder, tmp_path, classes=["a", "b", "c"])
    for split in ("train", "test"):  # a class that is not validated on
        write(tmp_path / split / "-1" / "x.png", 1)
    parts = finding.plan(made := own.from_folder(tmp_path), finding.find(made))
    assert made.classes == ("-1", "0", "1")
    assert np.bincount(parts["val"].labels).tolist() == [0, 3, 3]
    assert np.bincount(parts["test"].labels).tolist() == [1, 2, 2]
    write(tmp_path / "test" / "2" / "x.png", 1)
    refuses("different classes: .*test: -1, 0, 1, 2", own.from_folder, tmp_path)


def test_a_task_of_the_hub(tmp_path, hub, caplog):
    folder = tmp_path / "hub" / "datasets--me--pets" / "snapshots" / "abc"
    for split, count in (("train", 20), ("validation", 8)):  # no public test labels
        hub_file(folder / f"{split}.parquet", some(count, 2), ["a_cat", "dog"])
    pets = own.from_hub("me/pets")
    assert "no test split: its validation images are the test" in caplog.text
    assert (pets.name, pets.classes) == ("pets", ("a cat", "dog"))
    parts = finding.plan(pets, finding.find(pets))
    assert [len(parts[k].rows) for k in ("train", "val", "test")] == [18, 2, 8]
    refuses("has the columns image, label", own.from_hub, "me/pets", label="kind")
    refuses("owner/name", own.from_hub, "pets")
    hub.files[None] = ["train.parquet"]
    refuses("/somewhere has no images", own.from_hub, "me/others")
    assert hub.fetched


def test_suites_of_ones_own(tmp_path):
    entry = task("DTD")
    made = suites.Suite.from_tasks(entry)
    assert made.names == ("DTD",) and made.control.name == "Objects"
    refuses("different names", suites.Suite.from_tasks, entry, entry)
    refuses("different names", suites.Suite.from_tasks)
