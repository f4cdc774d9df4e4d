"""What the command `paper` says of a machine that is too slow."""

import pytest

from tasklab.__main__ import main
from tasklab.doctor import needs, readiness, speed
from tasklab.models.zoo import spec


@pytest.mark.usefixtures("bare")
def test_a_processor_that_takes_days_is_told_what_a_gpu_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(readiness, "hub_answer", lambda *model: "no network")
    slow = needs.Pace(0.05, times=speed.PROCESSOR)
    monkeypatch.setattr(needs.Pace, "here", classmethod(lambda cls, device: slow))
    given = ["--store-root", str(tmp_path / "store"), "--device", "cpu", "--dry-run"]
    main(["paper", "vitb32", *given])
    told = capsys.readouterr().out
    fast, images = needs.Pace(speed.H100, compiled=True), 1e6
    share = fast.passing(spec("vitb32"), images) / slow.passing(spec("vitb32"), images)
    assert share == pytest.approx(0.05 / speed.H100 * speed.EAGER / speed.PROCESSOR)
    assert " days on this machine\nThis is too much for a processor. An H100 computes" in told
    monkeypatch.setattr(needs.Pace, "here", classmethod(lambda cls, device: fast))
    main(["paper", "vitb32", *given])
    assert "too much for a processor" not in capsys.readouterr().out
