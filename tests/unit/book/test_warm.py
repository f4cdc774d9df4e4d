"""Kernels that are forked: they end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
import time

CODE = """
import multiprocessing, sys, time
from tasklab.book import warm
warm._server = lambda: multiprocessing.get_context("fork")
warm._start(time.sleep, 120)
sys.exit(130)
"""


def test_an_interrupted_command_does_not_wait_for_its_kernels():
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", CODE], timeout=100).returncode == 130
    assert time.monotonic() - began < 90
