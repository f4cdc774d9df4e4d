"""Cards of shipped weights: whole, or one error that says what to do."""

import json
import random

import pytest

from tasklab.mini import shipped
from tests.helpers import refuses


@pytest.fixture
def folder(tmp_path, monkeypatch):
    content = (shipped.FOLDER / "mini_xs.json").read_bytes()
    (tmp_path / "mini_xs.safetensors").touch()
    (tmp_path / "mini_xs.json").write_bytes(content)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1]", b"null", b"\xff\xfe", b'{"sha256": 1}', b'{"sha256": "0"}', None],
)
def test_a_card_that_cannot_be_read_is_one_error(folder, content):
    card = folder / "mini_xs.json"
    card.unlink() if content is None else card.write_bytes(content)
    refuses("mini_xs.json of pre-trained weights cannot be read", shipped.card, "mini_xs")


def test_whatever_is_damaged_the_checksum_stays_or_an_error_says_so(folder):
    card, rng = folder / "mini_xs.json", random.Random(0)
    whole = card.read_bytes()
    told = shipped.card("mini_xs")
    assert told == json.loads(whole)
    for _ in range(20):
        cut = rng.randrange(len(whole) - 100)
        card.write_bytes(whole[:cut] + bytes(100) + whole[cut + 100 :])
        refuses("Reinstall", shipped.card, "mini_xs")
