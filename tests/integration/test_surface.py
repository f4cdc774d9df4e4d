"""What a type checker sees of the public names."""

import os
import subprocess
import sys
from pathlib import Path

import tasklab

HEAVY = "torch torchvision pandas numpy matplotlib open_clip timm transformers sklearn scipy PIL"
CONFIG = f"""[mypy]
follow_imports = silent
ignore_missing_imports = True
[mypy-{",".join(f"{name}.*" for name in HEAVY.split())}]
follow_imports = skip
follow_imports_for_stubs = True
"""
GOOD = """from tasklab import Lab, Parameters, checkpoints, experiments, models, records, tangent

lab = Lab(model="mini")
Lab("mini", tasks="Textures")
Lab(Parameters(model="mini", head="probe"))
records.combine(experiments.single(lab, "nonlinear"))
names: tuple[str, ...] = lab.suite.names
"""
BAD = """from tasklab import Lab, Parameters, Labb

Lab("mini").no_such_thing
Parameters(head="porbe")
"""


def test_a_type_checker_knows_them(tmp_path):
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "good.py", "bad.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(tasklab.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    wrong = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.partition(":")[0] for line in wrong] == ["bad.py"] * 3, done.stdout + done.stderr
    assert [int(line.split(":")[1]) for line in wrong] == [1, 3, 4]
