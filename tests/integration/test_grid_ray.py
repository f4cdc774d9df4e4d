"""A grid on a real Ray cluster of two nodes, one of which is killed while it works.

Both nodes are on this machine, with one core each. Work is slowed down from outside, by a function
that is sent in place of the usual one, so that it is known what runs where when the node dies.
"""

import hashlib
import os
import secrets
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from tasklab.cli.cluster import grid, ray_cluster
from tasklab.cli.cluster.grid import Grid
from tasklab.errors import TasklabError

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
for name, seconds in {"agent_register": 300, "health_check": 60}.items():  # a busy machine is slow
    os.environ[f"RAY_{name}_timeout_ms"] = str(1000 * seconds)
os.environ["RAY_worker_register_timeout_seconds"] = "300"
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tasklab[cluster]'")

PATIENCE = 300  # seconds: a busy machine needs long to import torch
STEPS = 5
NODE = {
    "num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False,
    "include_log_monitor": False, "no_monitor": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE)
    session = made.head_node.get_session_dir_path()
    try:
        second = made.add_node(**NODE)
        yield made, second
    finally:
        ray.shutdown()
        made.shutdown()
    end = time.monotonic() + 30
    while left := subprocess.run(["pgrep", "-f", session], capture_output=True).stdout.split():
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.2)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    store = tmp_path_factory.mktemp("in_order")
    table = grid.run(small(store), progress=False)
    assert list(table["state"]) == ["done"] * 4
    return results(store)


def small(store):
    tasks = ["Textures", "Scenes"]
    methods = ["nonlinear", "linearized"]
    settings = {"steps": STEPS, "store_root": store, "device": "cpu", "precision": "float32"}
    return Grid("mini_xs", methods, tasks, **settings)


def results(store):
    files = store.glob("finetune/*/tensors.safetensors")
    return {f.parent.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def slowed(notes, stuck, patience=PATIENCE):
    """Return work that gets stuck in its fourth step on a node.

    Other nodes wait for that. Every step is noted, and leaves a checkpoint. All is inside of the
    function, as the workers cannot import this file.
    """

    def work(job, store):
        import os
        import time

        import ray

        from tasklab.cli.cluster import grid
        from tasklab.tuning import finetune, session

        node = ray.get_runtime_context().get_node_id()
        rate, maybe, rest = finetune.learning_rate, session.Saver.maybe, session._REST
        caught = notes / "caught"
        end = time.monotonic() + patience
        while node != stuck and not caught.exists() and time.monotonic() < end:
            time.sleep(0.05)

        def noted(config, step):
            with (notes / f"{job.key}.steps").open("a") as file:
                file.write(f"{node} {step}\n")
            if node == stuck and step == 3 and not caught.exists():
                draft = notes / "draft"
                draft.write_text(f"{job.key} {os.getpid()}")
                draft.rename(caught)
                time.sleep(patience)
            return rate(config, step)

        def every_step(one, *args):
            one.every, one.rest = 1, 0.0
            return maybe(one, *args)

        finetune.learning_rate, session.Saver.maybe, session._REST = noted, every_step, 0
        try:
            return grid._work(job, store)
        finally:
            finetune.learning_rate, session.Saver.maybe = rate, maybe
            session._REST = rest

    return work


def when_caught(notes, act):

    def wait():
        end = time.monotonic() + PATIENCE
        while not (notes / "caught").exists():
            if time.monotonic() > end:
                return
            time.sleep(0.05)
        key, process = (notes / "caught").read_text().split()
        act(key, int(process))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_node_that_does_not_share_the_folder_is_named(cluster, monkeypatch, tmp_path):
    made, second = cluster
    other = second.node_id

    real = ray_cluster.Cluster._ask

    def ask(cluster, function):  # on the second node, the same path is another disk
        def sees():
            import ray

            return ray.get_runtime_context().get_node_id() != other and function()

        about_the_store = isinstance(getattr(function, "__self__", None), Path)
        return real(cluster, sees if about_the_store else function)

    monkeypatch.setattr(ray_cluster.Cluster, "_ask", ask)
    with pytest.raises(TasklabError, match=r"^node [^ ,]+ does not see the store"):
        grid.run(small(tmp_path), made.address, progress=False)
    assert not ray.is_initialized()
    assert not results(tmp_path) and not list((tmp_path / "tmp").iterdir())


def test_a_node_is_killed_and_the_grid_ends_as_in_order(cluster, monkeypatch, tmp_path, in_order):
    made, second = cluster
    store, notes, lost = tmp_path / "store", tmp_path / "notes", []
    notes.mkdir()
    monkeypatch.setattr(grid, "_work", slowed(notes, second.node_id))

    def kill(key, process):
        lost.append(key)
        made.remove_node(second, allow_graceful=False)  # SIGKILL of all that Ray runs there
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass

    killer = when_caught(notes, kill)
    table = grid.run(small(store), made.address, progress=False)
    killer.join()
    assert list(table["state"]) == ["done"] * 4, table["error"].tolist()
    assert sorted(table["attempts"]) == [1, 1, 1, 2]
    assert results(store) == in_order

    (key,) = lost
    steps = [line.split() for line in (notes / f"{key}.steps").read_text().splitlines()]
    assert [int(step) for _, step in steps] == [0, 1, 2, 3, 3, 4]  # from the last checkpoint
    assert [node == second.node_id for node, _ in steps] == [True] * 4 + [False] * 2
    again = table[table["attempts"] == 2].iloc[0]
    jobs = {(job.method, job.task): job.key for job in grid.plan(small(store))}
    assert jobs[again["method"], again["task"]] == key
    assert not list((store / "tmp").iterdir()) and not list((store / "locks").glob("*.owner"))


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_is_finished(cluster, monkeypatch, tmp_path, in_order):
    made, _ = cluster
    store, notes, stopped = tmp_path / "store", tmp_path / "notes", []
    notes.mkdir()
    head = made.head_node.node_id
    one = small(store).changed(methods="nonlinear", tasks="Scenes")
    grid.run(one, progress=False)
    monkeypatch.setattr(grid, "_work", slowed(notes, head))

    def interrupt(key, process):
        stopped.append(process)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = when_caught(notes, interrupt)
    with pytest.raises(KeyboardInterrupt):
        grid.run(small(store), made.address, progress=False)
    stopper.join()
    assert not ray.is_initialized() and not list((store / "tmp").iterdir())
    end = time.monotonic() + 60
    while Path(f"/proc/{stopped[0]}").exists():
        assert time.monotonic() < end, "the run goes on"
        time.sleep(0.1)

    monkeypatch.undo()
    table = grid.run(small(store), progress=False)
    assert sorted(table["state"]) == ["done"] * 3 + ["kept"]
    assert results(store) == in_order
