"""The package's inner order, and what it may import when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_modules_import_only_from_those_before_them(root):
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(tool), "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
