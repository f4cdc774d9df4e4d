"""Tasks of your own: what names them, and what is said of folders that hold none."""

import huggingface_hub.constants
import pytest

from tasklab.errors import TasklabError
from tasklab.tasks import own
from tasklab.tasks.images import finding
from tests.helpers import refuses
from tests.layouts import images


@pytest.fixture
def pets(tmp_path):
    return classes(tmp_path / "pets", "cat", "dog")


def classes(root, *names):
    images(*(root / name for name in names), count=10)
    return root


def test_a_task_is_named_after_where_its_folder_is(pets):
    assert own.from_folder(pets / "cat" / "..").name == "pets"
    assert own.from_folder(f"{pets}/").name == "pets"
    (pets.parent / "animals").symlink_to(pets)
    assert own.from_folder(pets.parent / "animals").name == "animals"
    refuses("'' cannot name a task", own.from_folder, "/")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("missing", "it does not exist"),
        ("a file", "it is a file"),
        ("one class", "there is one class with images, 'cat', and a task needs two"),
        ("notes", r"there is one folder, 'images'; if its folders \(test, train\) are the"),
        ("only files", r"there are files \(.txt\), but no folder for each class"),
        ("a script", "scripts of data sets are not run"),
        ("arrow", "wrote by save_to_disk: write it as parquet"),
        ("hidden", r"names begin with a dot are left out \(.cat, .dog\)"),
    ],
)
def test_why_a_folder_has_no_task_in_it(made, told, tmp_path):
    folder = tmp_path / "x"
    if made == "a file":
        folder.write_text("")
    elif made == "one class":
        classes(folder, "cat")
    elif made == "notes":
        for split in ("test", "train"):
            classes(folder / "images" / split, "cat", "dog")
        (folder / "labels").mkdir()
    elif made == "arrow":
        for split in ("test", "train"):
            (folder / split).mkdir(parents=True)
            (folder / split / "data-00000-of-00001.arrow").write_bytes(b"\xff" * 9)
            (folder / split / "state.json").write_text("{}")
    elif made == "hidden":
        classes(folder, ".cat", ".dog")
    elif made != "missing":
        folder.mkdir()
        (folder / ("x.py" if made == "a script" else "x.txt")).write_text("")
    refuses(f"x has no images in folders, .*{told}", own.from_folder, folder)


def test_a_data_set_of_the_hub_that_is_only_a_script(tmp_path, monkeypatch):
    snapshot = tmp_path / "datasets--me--pets" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "pets.py").write_text("import datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(finding, "fetch", lambda task: classes(tmp_path / "fetched", "cat", "dog"))
    assert own.from_hub("me/pets").classes == ("cat", "dog")  # from the hub's own copy

    def refuse(task):
        raise TasklabError("pets cannot be fetched.")

    monkeypatch.setattr(finding, "fetch", refuse)
    refuses("scripts of data sets are not run. pets cannot be", own.from_hub, "me/pets")


def test_names_and_prompts(pets, tmp_path):
    assert own.from_folder(pets, templates="a photo of {}").templates == ("a photo of {}",)
    refuses("classes= is a list of names, .*not 'xy'", own.from_folder, pets, classes="xy")
    dots = classes(tmp_path / "dots", "polka_dot", "polka dot", "plain")
    refuses("'polka dot', 'polka_dot' do not differ in prompts", own.from_folder, dots)
    assert own.from_folder(dots, classes=["a", "b", "c"]).classes == ("a", "b", "c")
