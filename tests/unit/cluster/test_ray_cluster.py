"""Spreading work without a cluster: a stand-in for Ray, and locks of attempts that were lost."""

import fcntl
import itertools
import logging
import os
import socket
import sys
import threading
import time
import types

import pytest

from tasklab import machine
from tasklab.cli.cluster import ray_cluster, shared_store
from tasklab.errors import TasklabError
from tests.helpers import refuses


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause = None


class Ray(types.ModuleType):
    """Does at once what it is sent, on the first of three nodes if it is free to choose."""

    def __init__(self):
        super().__init__("ray")
        self.hosts = {"aaaaaaaa": "one", "bbbbbbbb": "one", "cccccccc": "two"}
        self.gpus, self.up, self.joined, self.slots, self.cancelled = 0, False, [], [], []
        self.here, self.number = "", itertools.count()
        system = ("NodeDiedError", "WorkerCrashedError", "TaskUnschedulableError")
        kinds = {name: type(name, (RayError,), {}) for name in system}
        self.exceptions = types.SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, **kinds
        )

    def is_initialized(self):
        return self.up

    def init(self, **options):
        self.up = True
        self.joined.append(options)

    def shutdown(self):
        self.up = False

    def nodes(self):
        known = {"Alive": True, "Resources": {"CPU": 1.0, "GPU": self.gpus}}
        return [{"NodeID": n, "NodeManagerHostname": h, **known} for n, h in self.hosts.items()]

    def cluster_resources(self):
        return {"GPU": self.gpus}

    def get_runtime_context(self):
        return types.SimpleNamespace(get_node_id=lambda: self.here)

    def remote(self, **slot):
        self.slots.append(slot)

        def task(function, node="aaaaaaaa"):
            send = lambda *words: (function, words, node, next(self.number))  # noqa: E731
            options = lambda scheduling_strategy: task(function, scheduling_strategy)  # noqa: E731
            return types.SimpleNamespace(remote=send, options=options)

        return task

    def wait(self, sent, timeout):
        return sent[:1], sent[1:]

    def get(self, sent, timeout=None):
        function, words, self.here, _ = sent
        return function(*words)

    def cancel(self, sent, force):
        assert force  # or the process goes on
        self.cancelled.append(sent[1][1])


@pytest.fixture
def ray(monkeypatch):
    made, strategies = Ray(), types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
    monkeypatch.setitem(sys.modules, "ray", made)
    hidden = "ray._private.authentication.authentication_utils"
    monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setitem(sys.modules, "ray.util", types.ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)
    return made


def spread(root, items, work, *, gpus=None, **more):
    with ray_cluster.join("auto", gpus) as cluster:
        return list(cluster.spread(items, work, root=root, **more))


def test_what_was_lost_is_begun_again_and_what_failed_is_not(ray, tmp_path):
    begun = []

    def work(item, store):
        assert store.root == tmp_path and isinstance(store, shared_store.ClaimedStore)
        begun.append(item)
        if item == "always" or begun.count("once") == 1 and item == "once":
            raise ray.exceptions.NodeDiedError("its node died\nand more")
        if item == "bug":
            problem = RayTaskError("traceback")
            problem.cause = ValueError("no")
            raise problem
        return item.upper()

    outcomes = sorted(spread(tmp_path, ["well", "once", "always", "bug"], work, retries=2))
    assert [outcome.value for outcome in outcomes] == ["WELL", "ONCE", None, None]
    assert [outcome.attempts for outcome in outcomes] == [1, 2, 3, 1]
    expected = ["", "", "lost 3 times, at last: NodeDiedError: its node died", "ValueError: no"]
    assert [outcome.error for outcome in outcomes] == expected
    assert outcomes[0].node == "one:aaaaaa" and outcomes[2].node == ""
    assert not ray.up and not ray.cancelled and not list((tmp_path / "tmp").iterdir())


def test_a_loss_is_noted_for_those_who_wait_for_its_locks(ray, tmp_path):
    seen = []

    def work(item, store):
        seen.append(sorted(file.name for file in store.folder.glob("*.lost")))
        if len(seen) == 1:
            raise ray.exceptions.WorkerCrashedError("gone")

    spread(tmp_path, ["a"], work)
    assert seen == [[], ["0-1.lost"]]


@pytest.mark.parametrize(
    ("there", "asked", "gpus"), [(0, None, 0), (8, None, 1), (8, False, 0), (0, True, 1)]
)
def test_a_slot_has_a_gpu_where_there_are_any(ray, monkeypatch, tmp_path, there, asked, gpus):
    ray.gpus = there
    spread(tmp_path, ["a"], lambda *_: 1, gpus=asked, cpus=4)
    assert ray.slots[-1] == {"num_cpus": 4, "num_gpus": gpus, "max_retries": 0}


@pytest.mark.parametrize(
    ("on_two", "fast"), [([(9, 0), (8, 0)], True), ([(7, 5)], False), ([], False), (None, True)]
)
def test_bfloat16_is_what_all_machines_with_gpus_are_fast_at(ray, monkeypatch, on_two, fast):
    def capabilities():  # `None`: a machine without GPUs for Ray
        return [(8, 6)] if ray.here != "cccccccc" else on_two

    monkeypatch.setattr(machine, "capabilities", capabilities)
    if on_two is None:
        nodes = ray.nodes

        def without():
            return [n if n["NodeID"] != "cccccccc" else n | {"Resources": {}} for n in nodes()]

        monkeypatch.setattr(ray, "nodes", without)
    ray.gpus = 2
    with ray_cluster.join("auto") as cluster:
        assert cluster.bfloat16() is fast
    for able in (True, False):
        slow = "cccccccc" if not able else ""  # one of three
        monkeypatch.setattr(machine, "fast_in_bfloat16", lambda slow=slow: ray.here != slow)
        with ray_cluster.join("auto", gpus=False) as cluster:
            assert cluster.bfloat16() is able


def test_an_interrupt_stops_what_is_under_way(ray, tmp_path):
    def work(item, store):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spread(tmp_path, ["a", "b", "c"], work)
    assert ray.cancelled == ["1-1", "2-1"]
    assert not ray.up and not list((tmp_path / "tmp").iterdir())


def test_nodes_that_do_not_see_the_store_are_named(ray, monkeypatch, tmp_path):
    look = shared_store.sees_store

    def elsewhere(folder):
        return look(folder if ray.here == "aaaaaaaa" else folder / "another disk")

    monkeypatch.setattr(ray_cluster, "sees_store", elsewhere)
    refuses("node one:bbbbbb, two does not see the store", spread, tmp_path, ["a"], lambda *_: 1)


def test_a_node_that_comes_later_must_see_the_store_too(ray, tmp_path):
    def work(item, store):
        if item == "a":
            (store.folder / "token").unlink()

    refuses("node one:aaaaaa does not see the store", spread, tmp_path, ["a", "b"], work)


def test_locks_that_do_not_hold_are_reported(ray, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(ray_cluster, "sees_store", lambda folder: (True, ray.here == "cccccccc"))
    spread(tmp_path, ["a"], lambda *_: 1)
    assert "do not hold on node two" in caplog.text and "one:" not in caplog.text


def test_a_node_that_cannot_run_tasklab_is_named_and_a_dead_one_is_not_asked(ray, monkeypatch):
    def able():
        if ray.here == "bbbbbbbb":
            raise raised("No module named 'tasklab'")
        return True

    monkeypatch.setattr(machine, "fast_in_bfloat16", able)
    with ray_cluster.join("local", gpus=False) as cluster:
        raised = ray.exceptions.NodeDiedError
        assert cluster.bfloat16()
        raised = RayError
        refuses("node one:bbbbbb cannot run tasklab, .* 300 s .*No module named", cluster.bfloat16)


def test_a_cluster_with_nobody_left_is_not_waited_for(ray, monkeypatch, tmp_path):
    monkeypatch.setattr(ray_cluster, "_NO_SLOT", -1.0)

    def work(item, store):
        ray.hosts = {}
        raise ray.exceptions.NodeDiedError("gone")

    refuses(r"has had 1 CPU for .* 1 items are not done", spread, tmp_path, ["a"], work)


def test_no_cluster_and_a_cluster_of_the_users(ray, tmp_path):
    ray.up = True  # started by the user: stays
    spread(tmp_path, ["a"], lambda *_: 1)
    assert ray.up and not ray.joined

    def nobody(**_):
        raise ConnectionError("nobody answers\nand more")

    ray.up, ray.init = False, nobody
    refuses(r"'auto' \(nobody answers\). Start one by `ray", spread, tmp_path, ["a"], lambda *_: 1)
    with socket.socket() as silent:  # a port at which nobody listens
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TasklabError, match="refused"), ray_cluster.join(address):
            pass
    assert not ray.joined


@pytest.mark.parametrize("mode", [None, "", "other", "disabled", "token", "Token"])
def test_a_cluster_without_a_token_is_refused_unless_asked_for(ray, monkeypatch, tmp_path, mode):
    monkeypatch.delenv("RAY_AUTH_MODE")
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if mode in ("disabled", "token", "Token"):
        assert [outcome.value for outcome in spread(tmp_path, ["a"], lambda *_: 1)] == [1]
        return
    refuses("one:aaaaaa, one:bbbbbb, two of", spread, tmp_path, ["a"], lambda *_: 1)
    assert not ray.up and not list(tmp_path.iterdir())


def test_a_local_cluster_is_rays_to_protect(ray, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE")
    with ray_cluster.join("local", gpus=False):
        assert ray.up and ray.joined[0]["logging_level"] <= logging.WARNING


def test_without_ray_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(r"pip install 'tasklab\[cluster\]'", spread, tmp_path, ["a"], lambda *_: 1)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_cluster, "_POLL", 0.05)
    made = tmp_path / "tmp" / "grid-1"
    made.mkdir(parents=True)
    (made / "0-1.lost").touch()
    return made


def hold(root, owner):
    file = root / "locks" / "result-k.lock"
    file.parent.mkdir(exist_ok=True)
    held = os.open(file, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    if owner:
        file.with_suffix(".owner").write_text(owner)
    return held


@pytest.mark.parametrize("owner", ["grid-1/0-1", "grid-0/7-1"], ids=["lost", "grid has ended"])
def test_the_lock_of_a_lost_attempt_is_taken(folder, tmp_path, owner):
    held, began = hold(tmp_path, owner), time.monotonic()
    with shared_store.ClaimedStore(folder, "0-2", patience=0.2)._lock("result", "k"):
        assert time.monotonic() - began >= 0.2
        assert (tmp_path / "locks" / "result-k.owner").read_text() == "grid-1/0-2"
        again = os.open(tmp_path / "locks" / "result-k.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):  # it holds against others
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)
    assert [file.suffix for file in (tmp_path / "locks").iterdir()] == [".lock"]
    os.close(held)


@pytest.mark.parametrize("owner", ["grid-1/0-9", ""], ids=["of this grid", "of no grid"])
def test_the_lock_of_a_living_process_is_waited_for(folder, tmp_path, owner):
    held, entered = hold(tmp_path, owner), []

    def wait():
        with shared_store.ClaimedStore(folder, "0-2", patience=0.0)._lock("result", "k"):
            entered.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive() and not entered
    os.close(held)
    waiting.join(60)
    assert entered
