"""Lists of images with their classes, in CSV files."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasklab.tasks import own
from tasklab.tasks.images import layouts, trees
from tests.helpers import refuses

SIX = {f"{n}": ("cat", "dog")[n % 2] for n in range(6)}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trees, "_told", set())


def images(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(names):
        Image.new("RGB", (4, 4), (n, len(str(folder)), 9)).save(folder / f"{name}.png")


def labels(root):
    return {
        split: {
            Path(file).relative_to(root).as_posix(): part.names[label]
            for file, label in zip(part.files, part.labels.tolist(), strict=True)
        }
        for split, part in layouts.splits_in(root).items()
    }


@pytest.mark.parametrize(
    ("form", "head"),
    [
        ("images/{0}.png,{1}", "file,label"),
        ("images/{0}.png,{1}", ""),
        ("{1},{0}.png", "breed,image"),  # another order, and names without their folder
        ("{0};{1};17", "id;Class Name;width"),  # no suffix
        ("{1}\t./images/{0}.png", ""),
        ("images\\{0}.png,{2},{1}", "path,class_id,class_name"),  # a class by number and by word
        ('"pets/images/{0}.png", "{1}"', ""),
        ("/home/me/pets/images/{0}.png,{1}", "path,target"),
        ("images/{0}.png,{1}", "# made by hand\nfile,label"),
        ("{0},{1},{3}", "file,label,fold"),
    ],
)
def test_one_rule_reads_lists(form, head, tmp_path, caplog):
    root = tmp_path / "pets"
    images(root / "images", *SIX, "left")
    rows = [form.format(n, word, int(word == "dog"), int(n) % 3) for n, word in SIX.items()]
    (root / "labels.csv").write_text("\n".join([head, *rows]), "utf-8-sig")
    assert labels(root) == {"all": {f"images/{name}.png": word for name, word in SIX.items()}}
    assert own.from_folder(root).classes == ("cat", "dog")
    assert "1 images are not in labels.csv (images/left.png)" in caplog.text
    assert ("0, 1, 2 of the column fold" in caplog.text) == head.endswith("fold")


@pytest.mark.parametrize(
    "way", ["names", "column", "is_test", "is_training_image", "training", "folders", "beside"]
)
def test_splits_of_lists(way, tmp_path):
    for split in ("train", "test"):
        images(tmp_path / split, *SIX)
    for split in ("train", "test"):
        name = tmp_path / split / "metadata.csv" if way == "beside" else tmp_path / f"{split}.csv"
        rows = [f"{file}.png,{word}" for file, word in SIX.items()]  # of both folders
        if way in ("names", "beside"):
            name.write_text("\n".join(rows))
            continue
        told = {
            "column": split,
            "is_test": int(split == "test"),
            "is_training_image": split == "train",
            "training": int(split == "train"),
        }
        rows = [f"{split}/{row}" + f",{told.get(way)}" * (way in told) for row in rows]
        with (tmp_path / "all.csv").open("a") as file:
            if way.startswith(("is_", "training")) and split == "train":
                rows.insert(0, f"file,label,{way}")
            file.write("\n".join([*rows, ""]))
    (tmp_path / "sample_submission.csv").write_text("0.png,cat") if way == "names" else None
    assert labels(tmp_path) == {
        split: {f"{split}/{name}.png": word for name, word in SIX.items()}
        for split in ("test", "train")
    }


def test_lists_tell_the_splits_of_folders_of_classes(tmp_path):
    for name in ("cat", "dog"):
        images(tmp_path / name, "0", "1")
    for n, split in enumerate(("train", "test")):
        (tmp_path / f"{split}.csv").write_text(f"file,label\ncat/{n}.png,0\ndog/{n}.png,1\n")
    whole = labels(tmp_path)
    assert whole["train"] == {"cat/0.png": "cat", "dog/0.png": "dog"}
    assert whole["test"] == {"cat/1.png": "cat", "dog/1.png": "dog"}


def test_numbers_are_in_their_order(tmp_path, caplog):
    images(tmp_path, *map(str, range(24)))
    rows = [f"{n},{n % 12}" for n in range(24)]  # the column of more images is that of files
    (tmp_path / "labels.csv").write_text("\n".join(["image,label", *rows]))
    (split,) = layouts.splits_in(tmp_path).values()
    assert split.names == tuple(map(str, range(12)))
    assert np.array_equal(split.labels, [int(Path(file).stem) % 12 for file in split.files])
    own.from_folder(tmp_path)
    assert "prompts call the classes 0, 1, 2, 3, ...: classes= names them" in caplog.text


def test_labels_of_two_classes_and_below_zero_are_told(tmp_path, caplog):
    images(tmp_path, *map(str, range(8)))
    rows = [f"{n},{('cat', 'dog', 'cat|dog', 'dog cat')[n % 4]}" for n in range(8)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,tags", *rows]))
    assert own.from_folder(tmp_path).classes == ("cat", "cat|dog", "dog", "dog cat")
    assert "cat|dog, dog cat are read as classes, and look like several each" in caplog.text
    (tmp_path / "labels.csv").write_text("\n".join(f"{n},{2 * (n % 2) - 1}" for n in range(8)))
    assert own.from_folder(tmp_path).classes == ("-1", "1")
    assert "prompts call the classes -1, 1" in caplog.text


@pytest.mark.parametrize(("there", "listed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_accents_are_the_same_however_they_are_written(there, listed, tmp_path):
    word = {form: unicodedata.normalize(form, "caf\xe9") for form in (there, listed)}
    images(tmp_path / word[there], *(f"{word[there]}{n}" for n in range(4)))
    rows = (f"{word[listed]}/{word[listed]}{n}.png,{('cat', 'dog')[n % 2]}" for n in range(4))
    (tmp_path / "labels.csv").write_text("\n".join(rows), "utf-8")
    found = {Path(file).stem[-1]: word for file, word in labels(tmp_path)["all"].items()}
    assert found == {"0": "cat", "1": "dog", "2": "cat", "3": "dog"}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["0.png,cat", "1.png,dog", "9.png,cat"], "1 of 3 listed images are missing"),
        (["0.png,cat", "1.png,dog", "1.png,cat"], "more than once, such as .*1.png"),
        (["0.png,cat", "1.png,"], "1 rows without a class, the first in line 2"),
        (["file,label", "0.png,cat", "1.png,NaN"], "1 rows without a class, the first in line 3"),
        (["file,label", "0.png,cat,3", "1.png,dog,4"], "names 2 of its 3 columns"),
        (["file,a,b", "0.png,1,0", "1.png,0,1"], "which of a, b has their classes"),
        (["file,label,class", "0.png,ant,bee", "1.png,bee,ant"], "which of label, class has"),
        (["0.png,cat", "1.png,dog,3"], "2 columns in its first rows and 3 in row 2"),
        (["0.png,cat", "1.png,cat"], "one class, 'cat'"),
        (["file,text", "0.png,a cat", "1.png,a dog", "3.png,cups"], "3 different classes for 3"),
        (["file,label", "0.png,cat", "2,dog", "3,cat"], r"names .*2.png or .*2.png"),
        (["file,label,split", "0.png,cat,train", "1.png,dog,private"], "private names none"),
    ],
)
def test_what_is_not_clear_is_refused(rows, says, tmp_path):
    images(tmp_path / "images", "0", "1", "2", "3")
    images(tmp_path / "train", "2")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    refuses(says, layouts.splits_in, tmp_path)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["file,label", "a/0,x", "a/1,y", "b/0,x", "b/1,y"], None),
        (["file,label", "a/0,x", "a/1,x", "b/0,y", "b/1,y"], ""),
        (["file,author", "a/0,x", "a/1,y", "b/0,x", "b/1,y"], "column of labels.csv"),
        (["file,w,h", "a/0,1,2", "a/1,1,3", "b/0,2,3", "b/1,3,1"], "which of w, h"),
    ],
)
def test_a_list_beside_folders_of_classes(rows, says, tmp_path, caplog):
    for name in "ab":
        images(tmp_path / name, "0", "1")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    if says is None:  # HAM10000's are in folders part_1 and part_2
        refuses("gives their images other classes", layouts.splits_in, tmp_path)
        return
    assert set(labels(tmp_path)["all"].values()) == {"a", "b"}
    assert says in caplog.text and bool(says) == bool(caplog.text)


@pytest.mark.parametrize(
    ("head", "form", "read_as"),
    [  # pandas writes row numbers, which are names of other images here
        (",filename,label", "{row},{0}.png,{1}", "filename, classes: label"),
        ("Unnamed: 0,id,breed", "{row},{0},{1}", "id, classes: breed"),
        ("label,image,n", "{1},{0}.png,{row}", "image, classes: label"),
        ("", "{row},{0}.png,{1}", "column 2, classes: column 3"),
        ("img,mask,label", "{0}.png,{0}_mask.png,{1}", "img, classes: label"),
        ("path,filename,label", "./images/{0}.png,{0}.png,{1}", "path, classes: label"),
        ("image,width,breed", "{0},640,{1}", "image, classes: breed"),
        ("image,label", "../images/{0}.png,{1}", "image, classes: label"),
        ("first,label", "{0},{1}", "first, classes: label"),  # an image is called like the header
    ],
)
def test_columns_of_images_and_classes_among_others(head, form, read_as, tmp_path, caplog):
    more = ["first"] * ("first" in head) + [f"{n}_mask" for n in SIX if "mask" in head]
    images(tmp_path / "images", *SIX, *more)
    rows = [form.format(k, SIX[k], row=row) for row, k in enumerate("314052")]
    (tmp_path / "labels.csv").write_text("\n".join(filter(None, [head, *rows])))
    assert labels(tmp_path)["all"] == {f"images/{k}.png": one for k, one in SIX.items()}
    assert f"images: {read_as} (cat, dog), split: drawn at random" in caplog.text


@pytest.mark.parametrize(
    ("head", "form", "says"),
    [
        ("index,number,label", "{row},{0},{1}", "could each name the images .index, number."),
        ("left,right,label", "{0}.png,{row}.png,{1}", "could each name the images .left, right."),
        ("image,age,test", "{0}.png,{2},{3}", "which of age, test has their classes"),
        ("image,label,split,phase", "{0}.png,{1},{4},{5}", "different splits .split, phase."),
    ],
)
def test_columns_that_could_have_the_same_role_are_refused(head, form, says, tmp_path):
    images(tmp_path, *SIX)
    words = ("train", "test")
    rows = [
        form.format(k, SIX[k], 20 + row // 3, row % 2, words[row % 2], words[row // 3], row=row)
        for row, k in enumerate("314052")
    ]
    (tmp_path / "labels.csv").write_text("\n".join([head, *rows]))
    refuses(says, own.from_folder, tmp_path)


@pytest.mark.parametrize("text", ["a,b\n1.5,x\n2.5,y", "file,label", "", '"0.png,cat\n1.png,dog'])
def test_a_list_that_names_no_image_is_not_read(text, tmp_path):
    for name in ("cat", "dog"):
        images(tmp_path / name, *SIX)
    (tmp_path / "notes.csv").write_text(text)
    assert {*labels(tmp_path)["all"].values()} == {"cat", "dog"}


@pytest.mark.parametrize("column", ["label", "author"])
def test_a_list_beside_a_folder_with_folders_of_classes(column, tmp_path):
    for name in "ab":
        images(tmp_path / "images" / name, "0", "1")
    rows = [f"{name}/{n}.png,{name}" for name in "ab" for n in range(2)]
    (tmp_path / "labels.csv").write_text("\n".join([f"file,{column}", *rows]))
    expected = {f"images/{name}/{n}.png": name for name in "ab" for n in range(2)}
    assert labels(tmp_path) == {"all": expected}
    for name in "cd":  # parts of classes, of which the list tells something else
        images(tmp_path / "two" / name / "x", "0")
        images(tmp_path / "two" / name / "y", "1")
    rows = [f"{name}/{part},{part}" for name in "cd" for part in ("x/0", "y/1")]
    (tmp_path / "two" / "labels.csv").write_text("\n".join(["file,author", *rows]))
    assert set(labels(tmp_path / "two")["all"].values()) == {"c", "d"}
