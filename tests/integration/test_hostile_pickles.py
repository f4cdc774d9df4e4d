"""Small files that stop PyTorch's restricted reader take seconds and little memory."""

import resource
import time

import pytest

from tasklab.storage.state_dicts import tensors
from tasklab.storage.torch_files import read
from tests.helpers import refuses
from tests.unit.storage.test_pickles import STOPPERS, zipped


@pytest.mark.parametrize("what", STOPPERS)
def test_what_stops_pytorchs_reader_takes_seconds(tmp_path, what):
    path = zipped(tmp_path / "x.pt", b"\x80\x04" + STOPPERS[what] + b".")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refuses(r"copy more than|no tensors by name", lambda: tensors(read(path)))
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # kB
