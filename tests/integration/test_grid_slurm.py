"""A grid on a real SLURM cluster of one node, whose job is signalled, requeued and continued."""

import hashlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import time

import pytest
import torch

from tasklab.cli.cluster import grid, slurm
from tasklab.cli.cluster.grid import Grid

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
PATIENCE = 400  # seconds: a busy machine needs long to import torch
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)) or os.getuid() != 0,
    reason="needs root and Debian's slurmctld, slurmd, slurm-client and munge",
)
# A requeued job waits for `cred_expire`: where it is below 5, SLURM takes 120 seconds.
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={at}
SlurmdSpoolDir={at}
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES
"""


def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(what):
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)
    return found


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    at = tmp_path / "slurm"
    at.mkdir(mode=0o755)
    (at / "key").write_bytes(secrets.token_bytes(256))
    (at / "key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONFIG.format(host=host, at=at, controller=port(), node=port())
    (at / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(at / "slurm.conf"))
    files = ("key-file=key", "socket=munge.socket", "pid-file=munge.pid", "log-file=munge.log")
    munge = [f"--{o.partition('=')[0]}={at}/{o.partition('=')[2]}" for o in files]
    commands = (
        ["munged", "--foreground", "--force", f"--seed-file={at}/seed", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    )
    started = []
    try:
        for command in commands:
            started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            time.sleep(1)
        until(lambda: "idle" in asked("sinfo", "-h", "-o", "%T"))
        yield
    finally:
        subprocess.run(["scancel", "--full", "--user=root"], capture_output=True)
        for process in reversed(started):
            process.terminate()
            process.wait(60)


def asked(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout


def result(store, key):
    file = store / "finetune" / key / "tensors.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_job_is_requeued_and_ends_as_an_undisturbed_one(tmp_path):
    settings = {"steps": 40, "device": "cpu", "precision": "float32"}
    runs = Grid(tasks="Textures", store_root=tmp_path / "store", **settings)
    made = slurm.scripts(runs, sbatch="--time=60")
    array, last = slurm.submit(made)
    log = made.folder / "0.log"
    until(lambda: log.exists() and "step" in log.read_text())
    subprocess.run(["scancel", "--batch", "--signal=USR1", f"{array}_0"], check=True)
    until(lambda: "COMPLETED" in asked("scontrol", "show", "job", last))
    assert re.search(r"SIGTERM\); \d+ of 40 steps are kept", log.read_text())
    assert "Restarts=1" in asked("scontrol", "show", "job", f"{array}_0")
    assert (made.folder / "summary.log").read_text() == "1 run, 0 missing\n"

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    grid.run(runs.changed(store_root=tmp_path / "here"), progress=False, only=0)
    torch.set_num_threads(threads)
    key = made.jobs[0].key
    assert result(tmp_path / "here", key) == result(tmp_path / "store", key)
