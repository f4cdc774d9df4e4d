"""Foreign files lie in every folder that a command writes to, and are still there afterwards."""

import os

import pytest
import torch
from huggingface_hub import constants

from tasklab.__main__ import main
from tasklab.bench.lab import Lab
from tasklab.storage import atomic, fetching
from tasklab.storage.tensors import save_checkpoint
from tasklab.tasks.images import pixels
from tests import hub as hubs
from tests.decoded import CENTRE, images, rows_of
from tests.helpers import refuses

NAMES = (
    ".notes.partial", "thesis.partial", ".thesis.safetensors.1234.partial", ".hidden", ".x.lock",
    "x.lock", "x.owner", "draft.tmp", ".merge.old", ".merge.1", ".tasklab-kernel.old",
    "old.damaged",    "x.incomplete", "discarded-discarded", "x.bak", ".partial", "grid-1", "core",
)  # fmt: skip
MODEL = ["--model", "mini_xs", "--device", "cpu"]
FEW = ["--steps", "2"]  # a rehearsal: a few images
VECTORS = ["Signs=a.safetensors", "Textures=b.safetensors"]
COMMANDS = {
    "train": ["train", "--model", "mini_xs", "--task", "Signs", "--steps", "2", "--device", "cpu"],
    "export": ["export", *MODEL, "--task", "Signs", "--steps", "2", "--out", "out/export"],
    "import": ["import", "a.safetensors", *MODEL, "--task", "Signs"],
    "merge": ["merge", *VECTORS, *MODEL, "--out", "out/m.st", "--model-out", "out/m.safetensors"],
    "folder": ["merge", *VECTORS, *MODEL, "--out", "out/n.st", "--model-out", "out/model"],
    "evaluate": ["evaluate", "mini_xs", "--add", "a.safetensors", "--task", "Signs", *FEW],
    "compare": [
        "compare", *VECTORS, *MODEL, *FEW, "--methods", "average", "--out", "out/report.html",
        "--csv", "out/rows.csv", "--merged", "out/best.st",
    ],
    "size": ["store", "size"],
    "gc": ["store", "gc", "--days", "0"],
}  # fmt: skip


def litter(folder):
    """Put files and folders of foreign names into a folder; return the files."""
    made = []
    for name in NAMES:
        whole, inside = folder / name, folder / f"{name}d" / "thesis.txt"
        if not whole.exists():
            whole.write_text("mine")
            inside.parent.mkdir()
            inside.write_text("mine")
            made += [whole, inside]
            for path in (whole, inside, inside.parent):
                os.utime(path, (0, 0))
    return made


def litter_all(root):
    """Litter a folder and all in it but what was littered before."""
    ours = [path for path in (root, *root.rglob("*")) if path.is_dir()]
    return [file for one in ours if one.name[:-1] not in NAMES for file in litter(one)]


def kept(files):
    gone = [file for file in files if not file.is_file() or file.read_text() != "mine"]
    assert not gone, gone


@pytest.mark.slow
def test_commands_leave_what_is_not_theirs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKLAB_STORE", str(tmp_path / "store"))
    lab = Lab("mini_xs", tasks=("Signs",), steps=2, progress=False, device="cpu")
    vector = lab.vector("Signs", "nonlinear", 0)
    (vector * 0.5).save("a.safetensors")
    (vector * 0.7).save("b.safetensors")
    (tmp_path / "out").mkdir()
    for folder in (
        "data/mini-1/a",
        "data/pictures/Signs",
        "store/damaged",
        "store/partial/finetune",
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    foreign = litter_all(tmp_path)
    for name, words in COMMANDS.items():
        if name == "gc":  # others read the images that all tests draw once
            monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "data"))
        status = main(words)
        assert status == 0, (name, capsys.readouterr().err)
        kept(foreign)
        foreign += litter_all(tmp_path)
    assert len(foreign) > 1000 and (tmp_path / "out" / "best.st").is_file()


def test_decoding_leaves_what_is_not_its_own(tmp_path):
    split = images(tmp_path / "images", 40)
    folder = tmp_path / "pets" / "train-centre16-0123456789ab"
    pixels.decode(folder, split, rows_of(split), CENTRE, progress=False)
    foreign = litter(folder.parent)
    assert pixels.decode(folder, split, rows_of(split), CENTRE, progress=False)
    work = folder.with_name(f"{folder.name}.partial")
    work.mkdir()
    (work / "x.npy").touch()
    foreign += litter(work)
    pixels.discard(pixels.arrays_in(folder))
    inside = litter(folder)
    refuses(
        "holds other files", pixels.decode, folder, split, rows_of(split), CENTRE, progress=False
    )
    kept([*foreign, *inside])
    folder.rename(tmp_path / "moved")
    pixels.decode(folder, split, rows_of(split), CENTRE, progress=False)
    moved = [folder / one.relative_to(work) for one in foreign if one.is_relative_to(work)]
    kept([one for one in foreign if not one.is_relative_to(work)] + moved)


def test_files_and_checkpoints_leave_what_is_not_theirs(tmp_path):
    foreign = litter(tmp_path)
    for _ in range(2):
        save_checkpoint(tmp_path / "x.safetensors", {"w": torch.zeros(3)}, {})
        atomic.write(tmp_path / "thesis", "x")
        with atomic.room(tmp_path, ".merge", [tmp_path / "x.safetensors"]):
            pass
    kept(foreign)


def test_a_fetched_file_of_another_version_stays(tmp_path, monkeypatch):
    content = b"whole, and of another version"
    with hubs.serve() as hub:
        hub.put("o/n", "m.bin", content)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        file = fetching.fetch("o/n", "m.bin", progress=False)
        foreign = litter_all(tmp_path)
        for _ in range(2):
            refuses(
                "does not have the checksum", fetching.fetch, "o/n", "m.bin", sha256="0" * 64,
                progress=False,
            )  # fmt: skip
            assert file.read_bytes() == content
        file.resolve().write_bytes(b"damaged")
        assert fetching.fetch("o/n", "m.bin", progress=False).read_bytes() == content
    kept(foreign)
