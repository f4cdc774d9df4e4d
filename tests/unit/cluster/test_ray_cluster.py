"""Spreading work without a cluster: a stand-in for Ray, and locks of attempts that were lost."""

import itertools
import logging
import socket
import sys
import time
import types
from pathlib import Path

import filelock
import pytest

from tasklab import machine
from tasklab.cli.cluster import ray_cluster
from tasklab.errors import TasklabError
from tasklab.storage.store import Store
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
        self.cancelled.append(sent[1][2])


@pytest.fixture
def ray(monkeypatch):
    made, strategies = Ray(), types.ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
    monkeypatch.setitem(sys.modules, "ray", made)
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
        assert store.root == tmp_path
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
    assert outcomes[0].node == socket.gethostname() and outcomes[2].node == ""
    assert not ray.up and not ray.cancelled and not list((tmp_path / "tmp").iterdir())


def test_the_lock_of_a_lost_attempt_is_passed_over(ray, monkeypatch, tmp_path):
    """A file server may keep the lock of a machine that died: here it is never released."""
    monkeypatch.setattr(ray_cluster, "_CUT_OFF", 0.2)
    key, seen = Store(tmp_path).key({"number": 1}), []
    lock = filelock.FileLock(tmp_path / "locks" / f"result-{key}.lock")

    def work(item, store):
        if not seen:
            lock.acquire()
            seen.append(store.patience)
            raise ray.exceptions.WorkerCrashedError("gone")
        began = time.monotonic()
        store.get("result", {"number": 1}, lambda _: ({}, {"made": True}))
        seen.extend([store.patience, time.monotonic() - began >= 0.2])

    (tmp_path / "locks").mkdir()
    (outcome,) = spread(tmp_path, ["a"], work)
    assert seen == [None, 0.2, True] and (outcome.error, outcome.attempts) == ("", 2)
    assert Store(tmp_path).find("result", {"number": 1}).record == {"made": True}
    lock.release()


@pytest.mark.parametrize(
    ("there", "asked", "gpus"), [(0, None, 0), (8, None, 1), (8, False, 0), (0, True, 1)]
)
def test_a_slot_has_a_gpu_where_there_are_any(ray, monkeypatch, tmp_path, there, asked, gpus):
    ray.gpus = there
    spread(tmp_path, ["a"], lambda *_: 1, gpus=asked, cpus=4)
    assert {"num_cpus": 4, "num_gpus": gpus, "max_retries": 0} in ray.slots


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
    assert ray.cancelled == ["b", "c"]
    assert not ray.up and not list((tmp_path / "tmp").iterdir())


def test_nodes_that_do_not_see_the_store_are_named(ray, monkeypatch, tmp_path):
    look = Path.is_dir

    def elsewhere(folder):
        return look(folder if ray.here == "aaaaaaaa" else folder / "another disk")

    monkeypatch.setattr(Path, "is_dir", elsewhere)
    refuses("node one, two does not see the store", spread, tmp_path, ["a"], lambda *_: 1)


def test_a_node_that_comes_later_must_see_the_store_too(ray, tmp_path):
    def work(item, store):
        if item == "a":
            (token,) = (store.root / "tmp").iterdir()
            token.rmdir()

    host = socket.gethostname()
    refuses(f"node {host} does not see the store", spread, tmp_path, ["a", "b"], work)


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
        refuses("node one cannot run tasklab, .* 300 s .*No module named", cluster.bfloat16)


def test_a_cluster_with_nobody_left_is_not_waited_for(ray, monkeypatch, tmp_path):
    def nothing_ends(sent, timeout):
        ray.hosts = {}
        return [], sent

    monkeypatch.setattr(ray, "wait", nothing_ends)
    refuses("has 1 CPU, and 1 items are not done", spread, tmp_path, ["a"], lambda *_: 1)
    assert ray.cancelled == ["a"]


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
    refuses("node one, one, two of", spread, tmp_path, ["a"], lambda *_: 1)
    assert not ray.up and not list(tmp_path.iterdir())


def test_a_local_cluster_is_rays_to_protect(ray, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE")
    with ray_cluster.join("local", gpus=False):
        assert ray.up and ray.joined[0]["logging_level"] <= logging.WARNING


def test_without_ray_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(r"pip install 'tasklab\[cluster\]'", spread, tmp_path, ["a"], lambda *_: 1)
