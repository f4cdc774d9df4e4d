"""A hash of code that only a change of the code changes."""

import pytest

from tasklab.storage import code

FILES = {
    "analyses/length.py": '"""Lengths."""\n\ndef length(x):\n    """Return it."""\n    return x\n',
    "analyses/angle.py": "from tasklab.analyses.length import length\n\nhalf = length(1) / 2\n",
    "mini/draw.py": "SIDE = 32\n",
    "experiments/angles.py": "from tasklab.analyses import angle\nfrom tasklab.mini import draw\n",
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "ROOT", tmp_path)

    def write(**changed):
        for function in (code._hash, code._imported):
            function.cache_clear()
        for name, text in FILES.items():
            file = tmp_path / "tasklab" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(changed.get(file.stem, text))
        return code.code_of(["tasklab.experiments.angles"], lambda name: ".analyses." in name)

    yield write
    for function in (code._hash, code._imported):
        function.cache_clear()


def test_only_code_that_runs_counts(written):
    first = written()
    told = FILES["analyses/length.py"].replace("Lengths", "Norms").replace("x\n", "x  # as it is\n")
    assert written(length=told) == first  # comments and docstrings
    assert written(draw="SIDE = 64\n") == first  # not followed
    assert written(length=FILES["analyses/length.py"].replace("return x", "return -x")) != first
    assert written(angle=FILES["analyses/angle.py"].replace("2", "3")) != first
    assert written() == first
    guarded = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {}"
    text = guarded.format("from tasklab.analyses import angle\n")
    one, other = written(angles=text), written(angles=text, angle="half = 0.5\n")
    assert one == other != written()


def test_where_imports_do_not_count_none_is_read(written, monkeypatch):
    written()
    every = ["tasklab.analyses.angle", "tasklab.analyses.length"]
    known = code.code_of(every, lambda name: False)
    with monkeypatch.context() as patch:
        patch.setattr(code, "_imported", None)
        assert code.code_of(every, None) == known
