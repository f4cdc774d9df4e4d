"""Scripts of a SLURM array, with stand-ins of sbatch, squeue and scontrol on the path."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

from tasklab import Lab, Store, machine
from tasklab.__main__ import main
from tasklab.bench.parameters import Parameters
from tasklab.cli.cluster import grid, slurm
from tasklab.cli.cluster.grid import Grid
from tasklab.errors import TasklabError
from tasklab.models import loading
from tasklab.tuning import finetune
from tests.helpers import refuses


@pytest.fixture
def small(tmp_path):
    settings = {"steps": 2, "seeds": (0, 4), "store_root": tmp_path / "store", "device": "cpu"}
    return Grid(tasks=["Textures", "Scenes"], precision="float32", **settings)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    answers = {"sbatch": "echo '7;there'", "squeue": f"cat {tmp_path}/queue 2>&-; true"}
    for name, answer in (answers | {"scontrol": "true"}).items():
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\n{answer}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return lambda: calls.read_text().splitlines() if calls.exists() else []


def directives(script):
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]
    return [word for line in lines for word in shlex.split(line)]


def test_the_command_of_a_job_makes_the_same_grid(small, monkeypatch):
    made = slurm.scripts(small, cpus=4, at_once=2, sbatch="--partition=a -t 1:00:00")
    asked = directives(made.array)
    assert {"--array=0-3%2", "--cpus-per-task=4", "--requeue", "--signal=B:USR1@120"} < {*asked}
    assert asked[-3:] == ["--partition=a", "-t", "1:00:00"] == directives(made.summary)[-3:]
    assert not any("gres" in one for one in asked) and not small.given["store_root"].exists()
    line = next(line for line in made.summary.splitlines() if " train " in line)
    seen = []
    monkeypatch.setattr(grid, "run", lambda runs, *args, **more: seen.append(runs) or 1 / 0)
    words = [word for word in shlex.split(line)[3:] if word not in ("--slurm", "--summary")]
    with pytest.raises(ZeroDivisionError):
        main(words)
    keys = [job.key for job in grid.laid_out(seen[0], away=False)]
    assert keys == [job.key for job in made.jobs] == [job.key for job in grid.plan(small)]


def test_the_card_that_runs_a_job_decides_on_its_precision(small, monkeypatch, pretended):
    monkeypatch.setattr(machine, "fast_in_bfloat16", lambda: False)
    open_grid = small.changed(device=None, precision=None)
    made = slurm.scripts(open_grid)
    assert "--gres=gpu:1" in directives(made.array) and "--device=cuda" in made.array
    assert "--precision" not in made.array + made.summary
    assert "--precision=float32" in slurm.scripts(small.changed(precision=None)).array
    assert "--precision=bfloat16" in slurm.scripts(small.changed(precision="bfloat16")).array
    for able, precision in (((7, 5), "float32"), ((8, 0), "bfloat16")):
        with pretended.cuda():
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *args, a=able: a)
            monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
            (first, *_) = grid.laid_out(open_grid.changed(device="cuda"), away=False)
            run = Parameters(**first.settings).recipe(first.task, first.method, first.seed)
            assert run.precision == precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_counts_as_kept_in_the_precision_of_any_card(small, precision):
    on_card = small.changed(device="cuda", precision=precision, store_root=None)
    stored = grid.laid_out(on_card.changed(store_root=small.given["store_root"]), away=True)[1]
    Store(small.given["store_root"]).get(
        "finetune", _identity(stored), lambda _: ({"w": torch.ones(1)}, {})
    )
    made = slurm.scripts(small.changed(device=None, precision=None))
    assert [job.kept for job in made.jobs] == [False, True, False, False]
    assert "--array=0,2-3" in directives(made.array)


def _identity(job):
    lab = Lab(
        Parameters(**{**job.settings, "device": "cpu"}), progress=False, tasks=job.tasks,
        use="plan",
    )  # fmt: skip
    return lab.identity(job.task, job.method, job.seed)


def test_only_what_is_missing_is_submitted_and_once(small, cluster, tmp_path, capsys):
    grid.run(small, progress=False, only=1)
    made = slurm.scripts(small)
    assert "--array=0,2-3" in directives(made.array)
    assert slurm.submit(made) == ("7", "7")
    scripts = [f"{made.folder}/{name}.sh" for name in ("array", "summary")]
    expected = [["--parsable", scripts[0]], ["--parsable", "--dependency=afterany:7", scripts[1]]]
    assert [call.split()[1:] for call in cluster() if call.startswith("sbatch")] == expected
    (tmp_path / "queue").write_text("7\n7\n")
    refuses("scancel 7", slurm.submit, made)
    words = slurm._words(slurm.elsewhere(small))
    (made.folder / "2.log").write_text("grid: run 1\nfailed  mini: it diverges\n1 run: 1 failed\n")
    assert main(["train", *words, "--slurm", "--summary"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "missing  mini, nonlinear, Textures, seed 0: not started",
        "missing  mini, nonlinear, Scenes, seed 0: failed  mini: it diverges",
        "missing  mini, nonlinear, Scenes, seed 4: not started",
        "4 runs, 3 missing",
    ]


def test_without_slurm_only_the_dry_run_works(small, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(finetune.Trainer, "__call__", None)
    words = ["train", *slurm._words(slurm.elsewhere(small)), "--slurm"]
    assert main(words) == 2 and not (tmp_path / "store").exists()
    assert "squeue is not on this machine" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "4 runs, 0 kept" in shown and "#SBATCH --array=0-3\n" in shown
    for wrong in (["--ray", "auto"], ["--only", "1"]):
        assert main([*words, *wrong]) == 2
    assert main([*words[:-1], "--summary"]) == 2
    assert main([*words, "--sbatch='"]) == 2


@pytest.mark.parametrize(("sent", "status"), [("USR1", 143), ("USR1", 3), ("TERM", 143)])
def test_a_job_is_requeued_after_its_checkpoint(
    small, cluster, monkeypatch, tmp_path, sent, status
):
    run, began, saved = tmp_path / "run", tmp_path / "began", tmp_path / "saved"
    run.write_text(
        f"#!/bin/sh\ntrap 'sleep 0.2; touch {saved}; exit {status}' TERM\n"
        f"sleep 0.2; touch {began}\n"
        "while :; do sleep 0.05; done\n"
    )
    run.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run))
    array = tmp_path / "array.sh"
    array.write_text(slurm.scripts(small).array)
    ids = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    with subprocess.Popen(["bash", str(array)], env=os.environ | ids) as job:
        while not began.exists():
            time.sleep(0.02)
        job.send_signal(getattr(signal, f"SIG{sent}"))
        assert job.wait(20) == status and saved.exists()
    requeued = sent == "USR1" and status == 143
    assert cluster() == (["scontrol requeue 7_2"] if requeued else [])


def test_a_store_with_a_percent_sign_keeps_its_logs(small, tmp_path, capsys):
    made = slurm.scripts(small.changed(store_root=tmp_path / "100%a x%"))
    folder = f"{tmp_path}/100%%a x%%/slurm/{made.folder.name}"
    assert f"--output={folder}/%a.log" in directives(made.array)
    assert f"--output={folder}/summary.log" in directives(made.summary)
    assert str(made.folder).startswith(f"{tmp_path}/100%a x%/")
    refuses("has a backslash", slurm.scripts, small.changed(store_root=tmp_path / "a\\b"))


@pytest.mark.parametrize("answer", ["", "\n", "accepted", ";there"])
def test_an_answer_without_a_number_is_no_job(small, cluster, tmp_path, answer):
    (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    refuses("sbatch answered .* number of the job", slurm.submit, slurm.scripts(small))


def test_options_of_sbatch_stand_with_and_without_a_second_equals_sign(small, capsys):
    words = ["train", *slurm._words(slurm.elsewhere(small)), "--slurm", "--dry-run"]
    shown = []
    for more in (["--sbatch=--mem=4G -t 1"], ["--sbatch", "--mem=4G -t 1"]):
        assert main([*words, *more]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and shown[0].count("#SBATCH --mem=4G\n#SBATCH -t 1\n") == 2
    assert main([*words, "--sbatch", "--cpus=2"]) == 2
    assert "--sbatch needs a value" in capsys.readouterr().err


def test_a_dry_run_needs_no_weights(small, monkeypatch, capsys):
    """On a login node; whoever submits needs them, for runs are named by them."""
    named = {job.key for job in slurm.scripts(small).jobs}
    plain = loading.locate

    def absent(name, init="pretrained", *given, **more):
        if init == "pretrained":
            raise TasklabError("the weights are not here.")
        return plain(name, init, *given, **more)

    monkeypatch.setattr(loading, "locate", absent)
    refuses("not here", slurm.scripts, small)
    capsys.readouterr()
    made = slurm.scripts(small, unseen=True)
    assert "which runs are kept is not known" in capsys.readouterr().err
    assert len(made.jobs) == 4 and not named & {job.key for job in made.jobs}
    assert not any(job.kept for job in made.jobs) and "--array=0-3" in made.array
    assert made.jobs[0].settings.get("init") != "random"  # the scripts ask for the weights
    assert "random" not in made.array
