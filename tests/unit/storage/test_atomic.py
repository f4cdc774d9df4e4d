"""Files and folders: whole or as before, whatever stops the writing."""

import errno
import fcntl
import os
import re
import stat
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


@pytest.fixture
def dead():
    """Return the number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


def of(process, path):
    """Return a path with the mark of another process."""
    return path.with_name(path.name.replace(f"-{os.getpid()}-", f"-{process}-"))


@pytest.mark.skipif(os.name == "nt", reason="looks for processes by number")
def test_a_draft_goes_when_its_writer_is_dead(tmp_path, dead):
    with atomic.replacing(tmp_path / "a") as draft:
        draft.touch()
        left = of(dead, draft)
        gone = [left, left.with_name(f"{left.name}{atomic.PARTIAL}")]  # of safetensors' writer
        kept = [of(os.getppid(), draft), left.with_name(left.name[1:])]
        kept.append(left.with_name(re.sub(r"\.[0-9a-f]{8}-", ".00000000-", left.name)))
        for path in (*gone, *kept):
            path.touch()
        with atomic.replacing(tmp_path / "a") as other:
            other.write_text("b")
            assert set(tmp_path.iterdir()) == {draft, other, *kept}
        another = draft.with_name(draft.name.replace(".a.", ".b."))
        for path in (*gone, another):
            path.touch()
        atomic.sweep(tmp_path)
        assert set(tmp_path.iterdir()) == {tmp_path / "a", draft, another, *kept}


FOREIGN = (
    ".notes.partial", ".backup.old.partial", ".a.1234.partial", ".a.0123abcd.partial", "a.partial",
    ".room.old", ".room.1", ".room.partial", ".a.zzzzzzzz-1-00000000.partial", ".lock", ".a.tmp",
)  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="looks for processes by number")
def test_what_has_no_full_mark_of_a_dead_process_stays(tmp_path, dead):
    mine = of(dead, atomic.marked(tmp_path / ".room"))
    near = [mine.name[:-1], f"{mine.name}0", f"{mine.name}.old", f".a{mine.name[5:]}.partial.old"]
    names = [*FOREIGN, *near]
    for number, name in enumerate(names):
        path = tmp_path / name
        path.mkdir() if number % 2 else path.write_text("mine")
        if path.is_dir():
            (path / "thesis.txt").write_text("mine")
        os.utime(path, (0, 0))
    mine.mkdir()
    left = tmp_path / f".a{mine.name[5:]}.partial"
    left.mkdir()
    (left / "half").touch()
    atomic.sweep(tmp_path)
    atomic.write(tmp_path / "a", "x")
    with atomic.room(tmp_path, ".room", [tmp_path / "a"]):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"a", *names}
    assert len(list(tmp_path.rglob("thesis.txt"))) == len(names) // 2


REFUSALS = [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM]


@pytest.mark.parametrize("number", REFUSALS)
def test_a_folder_that_cannot_be_flushed_is_written_all_the_same(tmp_path, monkeypatch, number):
    def refusing(opened):
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refusing)
    atomic.write(tmp_path / "a", "x")
    with atomic.folder(tmp_path / "folder") as draft:
        (draft / "b").write_text("y")
    assert (tmp_path / "a").read_text() == "x" and (tmp_path / "folder" / "b").read_text() == "y"


def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch):
    def failing(opened):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        atomic.write(tmp_path / "a", "x")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL])
def test_a_disk_without_locks_is_told_once(tmp_path, monkeypatch, number, caplog):
    def refusing(opened, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refusing)
    for name in "ab":
        with atomic.alone(tmp_path / name, lambda: None):
            pass
    (told,) = caplog.messages
    assert f"the disk of {tmp_path} has no locks" in told
    with pytest.raises(OSError) as caught, atomic.tried(tmp_path / "a"):
        pass
    assert atomic.is_refused(caught.value)


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
