"""Data files of the package: what is damaged is refused before a number comes of it."""

import json
import random
import shutil

import pytest

from tasklab.errors import TasklabError
from tasklab.evidence.records import claims
from tasklab.evidence.study.answers import answers
from tasklab.storage import shipped
from tests.helpers import refuses

NAMES = sorted(json.loads(shipped.SUMS.read_text("utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_or_a_cut_is_refused(name, tmp_path, monkeypatch):
    whole = shipped.content(shipped.ROOT / name)
    assert whole == (shipped.ROOT / name).read_bytes()
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    draw = random.Random(name)
    flipped = bytearray(whole)
    flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    for damaged in (bytes(flipped), whole[: draw.randrange(len(whole))], b""):
        file.write_bytes(damaged)
        with pytest.raises(TasklabError, match="is damaged"):
            shipped.content(file)
    file.unlink()
    with pytest.raises(TasklabError, match="cannot be read"):
        shipped.content(file)
    if whole.isascii():  # a clone may have other line ends
        file.write_bytes(whole.replace(b"\n", b"\r\n"))
        assert shipped.content(file).replace(b"\r\n", b"\n") == whole


def test_checksums_are_written_anew(tmp_path, monkeypatch):
    shutil.copy(shipped.SUMS, tmp_path / "sums.json")
    monkeypatch.setattr(shipped, "SUMS", tmp_path / "sums.json")
    shipped.lock()
    assert json.loads((tmp_path / "sums.json").read_text()) == json.loads(
        (shipped.ROOT / "storage" / "shipped_sha256.json").read_text()
    )
    assert len(NAMES) >= 15


@pytest.mark.parametrize(
    "name, read",
    [
        ("evidence/records/statements.csv", claims._claims),
        ("evidence/records/claims.csv", claims._claims),
        ("evidence/study/answers.csv", answers),
    ],
)
def test_an_edited_table_is_refused_until_it_is_locked(name, read, monkeypatch):
    sums = shipped._sums()
    monkeypatch.setattr(shipped, "_sums", lambda: {**sums, name: sums[name][::-1]})
    assert shipped.LOCK in refuses(name.split("/")[1], read)
