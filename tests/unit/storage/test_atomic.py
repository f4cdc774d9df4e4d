"""Files and folders: whole or as before, whatever stops the writing."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasklab.storage import atomic, folders
from tests.helpers import refuses


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "a.txt"
    atomic.write(file, "old")
    atomic.write(file, "é")
    assert file.read_bytes() == "é".encode() and names(tmp_path) == {"a.txt"}
    atomic.write(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    (tmp_path / "usual").touch()
    assert file.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_file_stays_if_its_writing_stops(tmp_path, error):
    atomic.write(tmp_path / "a", "old")
    with pytest.raises(type(error)), atomic.replacing(tmp_path / "a") as draft:
        draft.write_text("half")
        assert (tmp_path / "a").read_text() == "old"
        raise error
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == {"a"}


def test_what_a_link_leads_to_is_replaced(tmp_path):
    atomic.write(tmp_path / "a", "old")
    (tmp_path / "link").symlink_to("a")
    atomic.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "new"


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "a")
    refuses("is a device or a pipe", lambda: atomic.write(tmp_path / "a", "new"))
    assert (tmp_path / "a").is_fifo() and names(tmp_path) == {"a"}


@pytest.mark.skipif(os.name == "nt", reason="looks for processes by number")
def test_a_draft_goes_when_its_writer_is_dead(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with atomic.replacing(tmp_path / "a") as draft:
        draft.touch()
        mine = draft.name
        left = [mine.replace(f"-{os.getpid()}-", f"-{dead.pid}-")]
        left.append(f"{left[0]}{atomic.PARTIAL}")  # of safetensors' writer
        kept = [mine.replace(f"-{os.getpid()}-", f"-{os.getppid()}-"), left[0][1:]]
        kept.append(left[0].replace(atomic._machine(), "another1"))
        for name in (*left, *kept):
            (tmp_path / name).touch()
        with atomic.replacing(tmp_path / "a") as other:
            other.write_text("b")
            assert names(tmp_path) == {mine, other.name, *kept}
        for name in (*left, mine.replace(".a.", ".b.")):
            (tmp_path / name).touch()
        atomic.sweep(tmp_path)
        assert names(tmp_path) == {"a", mine, mine.replace(".a.", ".b."), *kept}


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "in" / "folder"
    with pytest.raises(ZeroDivisionError), atomic.folder(folder) as draft:
        (draft / "a").touch()
        raise ZeroDivisionError
    assert names(folder.parent) == set()
    with atomic.folder(folder) as draft:
        (draft / "deep").mkdir()
        (draft / "deep" / "a").write_text("1")
    assert (folder / "deep" / "a").read_text() == "1" and names(folder.parent) == {"folder"}
    with pytest.raises(OSError) as told, atomic.folder(folder) as draft:
        (draft / "a").touch()
    assert told.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    assert names(folder) == {"deep"} and names(folder.parent) == {"folder"}


def test_files_of_a_folder_that_is_there_are_replaced_in_order(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text("old")
    with atomic.folder(folder, order=("b", "a", "absent")) as draft:
        for name in "ab":
            (draft / name).write_text("new")
    assert [(folder / name).read_text() for name in "abc"] == ["new", "new", "old"]
    assert names(tmp_path) == {"folder"}


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order: list[str] = []
    flush = atomic.flush
    monkeypatch.setattr(atomic, "flush", lambda path: (order.append(path.name), flush(path)))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda a, b: (order.append("renamed"), rename(a, b))[1])
    with atomic.folder(tmp_path / "folder") as draft:
        (draft / "a").touch()
    assert order == ["a", draft.name, "renamed", tmp_path.name]


def test_where_things_are(tmp_path, monkeypatch):
    for variable, of in ((folders.STORE, folders.store), (folders.DATA, folders.data)):
        monkeypatch.setenv(variable, str(tmp_path))
        assert of() == tmp_path and of("other") == Path("other").absolute()
        monkeypatch.setenv(variable, "~nosuchuser/x")
        refuses(f"{variable}: .*nosuchuser.* a user who is not", of)
        monkeypatch.setenv(variable, "")
        assert of().parts[-2:] in {("tasklab", "store"), ("tasklab", "data")}
    refuses("null character", folders.store, "a\0b")
