"""What is imported before anything is asked for: the time to a first answer is that of imports."""

import os
import subprocess
import sys

# Each takes from a tenth of a second to seconds.
TABLES = ("pandas", "seaborn", "matplotlib", "scipy", "sklearn")
NETWORKS = ("torch", "torchvision", "open_clip", "timm", "transformers", "jaxtyping", "numpy")


def imported(*steps):
    """Return what a new process has on the standard error and imported after each step."""
    tell = "\nimport sys; print(*sys.modules, end='\\0', file=sys.stderr)\n"
    command = [sys.executable, "-c", tell.join((*steps, ""))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [set(words.split()) for words in done.stderr.split("\0")[:-1]]


MAIN = """from tasklab.__main__ import main
for words in {words}:
    try: status = main(words)
    except SystemExit as end: status = end.code or 0
    assert status == {status}, (words, status)
"""


def test_nothing_waits_for_networks_tables_or_torch():
    first = [["list"], ["--help"], ["train", "--help"]]
    (there,) = imported(MAIN.format(words=first, status=0))
    assert "tasklab.errors" in there and not there & {*TABLES, *NETWORKS}
    words = [
        ["list", "modles"],
        ["train", "--model", "minni"],
        ["train", "--method", "liniarized", "--dry-run"],
        ["train", "--task", "Textuers", "--dry-run"],
        ["train", "--steps", "none"],
        ["record", "tangent", "--part", "mapps", "--dry-run"],
        ["record", "tangent", "--model", "minni"],
    ]
    (there,) = imported(MAIN.format(words=words, status=2))
    assert {f"'{name}'" for name in ("mini", "linearized", "Textures", "maps")} <= {
        word.strip("?.,") for word in there
    }
    assert not there & {*TABLES, "torch"}
    told = [
        "import sys\nfrom tasklab.cli import compare, evaluating, inspecting, merging, parsing",
        "seen = []\nparsing.begin = lambda _: seen.append('torch' in sys.modules)",
        "from tasklab.__main__ import main\nwords = ['compare', 'a.st', 'b.st', '--model', 'mini']",
        "assert main(words) == 2 and main(words) == 2 and seen == [False], seen",
    ]
    assert not imported(*told)[2] & {*TABLES, "torch", "numpy"}
    told = [
        "import sys\nfrom tasklab.cli import doctoring, paper",
        "def begin(_): sys.exit('torch' in sys.modules)\ndoctoring.begin = paper.begin = begin",
        MAIN.format(words=[["doctor"], ["paper", "vitb32", "--dry-run"]], status=0),
    ]
    assert not imported(*told)[2] & {*TABLES, "torch", "numpy"}
    modules = "records.judgement records.papers study.results figures book chapters __main__"
    modules += " tuning.recipe tuning.methods"
    code = "import importlib, sys\n"
    for name in modules.split():
        code += f"importlib.import_module('tasklab.{name}'); assert 'torch' not in sys.modules\n"
    assert "tasklab.evidence.figures" in imported(code)[0]


def test_merges_grids_and_labs_wait_for_what_they_compute_with_alone(tmp_path, monkeypatch):
    grid = ["train", "--task", "Signs", "--dry-run", "--store-root", str(tmp_path)]
    merged, planned, opened = imported(
        "import tasklab, torch\nfrom tasklab import TaskVector\n"
        "tasklab.analyses.merging.merge('ties', [TaskVector({'w': torch.ones(9)})] * 2)",
        f"from tasklab.__main__ import main\nassert main({grid}) == 0",
        "tasklab.Lab, tasklab.Parameters",
    )
    rooms = {name.split(".")[1] for name in merged if name.startswith("tasklab.")}
    assert "analyses" in rooms and not rooms & {"records", "figures", "experiments", "chapters"}
    assert "tasklab.models.loading" in planned and "torchvision" not in planned  # no model is built
    assert "tasklab.bench.lab" in opened
    assert not opened & {*TABLES, "open_clip", "timm", "transformers"}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (there,) = imported("from tasklab.__main__ import main; main(['doctor', '--json'])")
    assert "tasklab.cli.doctor.readiness" in there and not there & {"pandas", "matplotlib"}
    assert not there & {"open_clip", "timm", "transformers", "torchvision"}


def test_a_closed_output_is_no_error():
    """As of `tasklab list >&-`, and of programs of a desktop."""
    command = [sys.executable, "-m", "tasklab", "list", "merges"]
    for stream in (0, 1, 2):
        done = subprocess.run(
            command, preexec_fn=lambda at=stream: os.close(at), stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
