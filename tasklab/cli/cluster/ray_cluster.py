"""Work spread over a Ray cluster: one slot for each item, retried after a lost machine or process.

Ray only assigns runs to machines. Results go into a store that all machines share
(`cluster.shared_store`), so that whatever is finished stays finished, and a run that is taken over
goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tasklab import machine
from tasklab.cli.cluster.shared_store import ClaimedStore, sees_store, shared_folder
from tasklab.errors import TasklabError, first_line
from tasklab.storage.store import Store

Work = Callable[[Any, Store], Any]  # an item and the shared store -> what it gives

_log = logging.getLogger(__name__)
_OBJECTS = 100 * 2**20  # bytes of Ray's own memory on this machine: results do not go through it
_ANSWER = 300.0  # seconds in which a machine must import torch and look for the token
_NO_SLOT = 300.0  # seconds to wait for a machine that can do the work
_POLL = 1.0  # seconds
_REACHED = 5.0  # seconds until a cluster's first machine answers
_MODE = "RAY_AUTH_MODE"  # Ray's own switch: token or disabled
_BLIND = "does not see the store"
# Errors of Ray, not of the work; OutOfMemoryError: its monitor ended the process.
_SYSTEM = ("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError",
           "ObjectLostError", "RaySystemError")  # fmt: skip


class Outcome(NamedTuple):
    """The result of one item, or its error."""

    item: int  #: Its number
    value: Any  #: `None` if the work did not end
    error: str
    node: str  #: Name of the machine; empty if it was lost
    attempts: int


@contextlib.contextmanager
def join(address: str, gpus: bool | None = None) -> Iterator[Cluster]:
    """Join a cluster, or start one; leave it at the end, unless the user had joined it before.

    Args:
        gpus: Whether a slot has a GPU; `None` asks whether the cluster has any.

    Raises:
        TasklabError: If Ray is not installed, there is no such cluster, or it runs the code of
            whoever reaches it (no token) and `RAY_AUTH_MODE=disabled` does not say that it may.
    """
    ray = _ray()
    own = _connect(ray, address)
    try:
        if address != "local" and os.environ.get(_MODE, "").lower() != "disabled":
            _refuse_strangers(Cluster(ray, gpus=False))
        if gpus is None:
            gpus = ray.cluster_resources().get("GPU", 0) >= 1
        yield Cluster(ray, gpus)
    finally:
        if own:
            ray.shutdown()


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, ray: ModuleType, gpus: bool) -> None:
        self.ray, self.gpus = ray, gpus

    def bfloat16(self) -> bool:
        """Return whether every machine with slots is fast at bfloat16: its GPUs, or processor."""
        if not self.gpus:
            return all(self._ask(_fast_processor).values())
        able = self._ask(machine.capabilities)
        with_gpus = {n["NodeID"] for n in _alive(self.ray) if n["Resources"].get("GPU", 0) >= 1}
        speeds = [able[node] for node in with_gpus & able.keys()]
        return bool(speeds) and all(s and min(s) >= machine.BFLOAT16 for s in speeds)

    def spread(
        self, items: Sequence[Any], work: Work, *, root: Path, cpus: int = 1, retries: int = 3
    ) -> Generator[Outcome]:
        """Run `work` on every item, each in a slot of the cluster; yield outcomes as they come.

        An item starts again if its machine or process was lost, but not if the work itself failed.
        If the caller stops, running items are stopped too.

        Args:
            items: Arguments that pickle can send to other machines.
            work: Function of an item.
            root: Folder of the store, which every machine must see.
            cpus: Cores of a slot.
            retries: How often an item starts again at most.

        Raises:
            TasklabError: If a machine does not see the store, or none is left that could do the
                work.
        """
        if not items:
            return
        ray, pending = self.ray, {}
        with shared_folder(root) as folder:
            names = self._share(folder)
            slot = {"num_cpus": cpus, "num_gpus": int(self.gpus)}
            task = ray.remote(**slot, max_retries=0)(_do)

            def begin(index: int, attempt: int) -> None:
                sent = task.remote(folder, f"{index}-{attempt}", work, items[index], cpus)
                pending[sent] = index, attempt

            try:
                for index in range(len(items)):
                    begin(index, 1)
                last = time.monotonic()  # when a machine could do the work
                while pending:
                    ready, _ = ray.wait(list(pending), timeout=_POLL)
                    for sent in ready:
                        index, attempt = pending.pop(sent)
                        value, problem = None, ""
                        try:
                            node, value = ray.get(sent)
                        except ray.exceptions.RayError as error:
                            node, problem = "", _described(error)
                            if _is_loss(ray, error):
                                (folder / f"{index}-{attempt}.lost").touch()
                                if attempt <= retries:
                                    _log.info("%s: begun again", problem)
                                    begin(index, attempt + 1)
                                    continue
                                problem = f"lost {attempt} times, at last: {problem}"
                        if node and node not in names:
                            names = _names(ray)
                        node = names.get(node, node)
                        if value == (_BLIND,):
                            raise _unseen([node], folder)
                        yield Outcome(index, value, problem, node, attempt)
                    now, least = time.monotonic(), {"CPU": cpus, "GPU": int(self.gpus)}
                    able = (one["Resources"] for one in _alive(ray))
                    if any(all(one.get(k, 0) >= n for k, n in least.items()) for one in able):
                        last = now
                    if pending and now - last > _NO_SLOT:
                        raise TasklabError(
                            f"no machine of the cluster has had {cpus} CPU"
                            f"{' and a GPU' * self.gpus} for {_NO_SLOT:g} s, and {len(pending)} "
                            "items are not done. Add machines by `ray start --address=HOST:6379`; "
                            "the same command goes on from there."
                        )
            finally:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    for sent in pending:
                        ray.cancel(sent, force=True)

    def _share(self, folder: Path) -> dict[str, str]:
        names = _names(self.ray)
        answers = self._ask(sees_store, folder)
        names |= _names(self.ray)  # with one that came meanwhile
        if blind := [names[node] for node, (sees, _) in answers.items() if not sees]:
            raise _unseen(blind, folder)
        for node, (_, alone) in answers.items():
            if alone:
                _log.warning(
                    "locks in %s do not hold on node %s: on a network disk without locks (mounted "
                    "with nolock?) two machines may compute the same thing at once",
                    folder.parents[1],
                    names[node],
                )
        return names

    def _ask(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, names, answers = self.ray, _names(self.ray), {}
        task = ray.remote(num_cpus=0, max_retries=1)(function)
        there = {n: NodeAffinitySchedulingStrategy(n, soft=False) for n in names}
        asked = {n: task.options(scheduling_strategy=s).remote(*args) for n, s in there.items()}
        for node, sent in asked.items():
            try:
                answers[node] = ray.get(sent, timeout=_ANSWER)
                continue
            except ray.exceptions.GetTimeoutError:
                problem = f"did not answer within {_ANSWER:g} s"
            except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError) as error:
                # It died a moment ago: the cluster did not know yet.
                _log.info("node %s is gone: %s", names[node], _described(error))
                continue
            except ray.exceptions.RayError as error:
                problem = f"cannot run tasklab: {_described(error)}"
            problem += ". Is the same tasklab installed on it?"
            raise TasklabError(f"node {names[node]} {problem}")
        return answers


def _ray() -> ModuleType:
    # Before Ray is imported: it sends nothing home, and hides no GPU from a run on the processor.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise TasklabError(
            f"a cluster needs Ray, which is not installed ({error}): pip install "
            "'tasklab[cluster]'. Without an address the same grid runs in order on this machine."
        ) from error


def _refuse_strangers(cluster: Cluster) -> None:
    names = _names(cluster.ray)
    if open_nodes := [names[n] for n, asks in cluster._ask(_asks_for_token).items() if not asks]:
        raise TasklabError(
            f"node {', '.join(open_nodes)} of the cluster asks for no token: whoever reaches it "
            "can run any code there. Make one by `ray get-auth-token --generate`, start every node "
            f"with {_MODE}=token (the page on clusters tells how), or, in a network that nobody "
            f"else uses, set {_MODE}=disabled for this command to take the cluster as it is."
        )


def _fast_processor() -> bool:
    return machine.fast_in_bfloat16()


def _asks_for_token() -> bool:
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:  # not public: of a release that has it elsewhere
        return os.environ.get(_MODE, "").lower() == "token"
    return is_token_auth_enabled()


def _connect(ray: ModuleType, address: str) -> bool:
    if ray.is_initialized():  # by the user
        return False
    quiet = {"logging_level": logging.WARNING, "log_to_driver": False}
    local = {"include_dashboard": False, "object_store_memory": _OBJECTS}
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon:  # Ray itself asks for minutes
            socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
        ray.init(address=address, **quiet, **(local if address == "local" else {}))
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise TasklabError(
            f"cannot join a Ray cluster at {address!r} ({first_line(error)}). Start one by `ray "
            "start --head` on one machine and `ray start --address=HOST:6379` on the others, and "
            "run this on one of them; address 'local' needs none."
        ) from error
    return True


def _unseen(nodes: Sequence[str], folder: Path) -> TasklabError:
    return TasklabError(
        f"node {', '.join(nodes)} {_BLIND} {folder.parents[1]}: results must go into one folder "
        "that all machines share under the same path. Give it as store_root (--store-root)."
    )


def _do(folder: Path, attempt: str, work: Work, item: Any, cpus: int) -> tuple[str, Any]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    if not (folder / "token").is_file():  # a machine that came later than the question
        return node, (_BLIND,)
    torch.set_num_threads(cpus)
    return node, work(item, ClaimedStore(folder, attempt))


def _alive(ray: ModuleType) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _names(ray: ModuleType) -> dict[str, str]:
    """Return names by id: that of the host, with a part of the id where a host has several."""
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in _alive(ray)}
    several = {host for host in hosts.values() if list(hosts.values()).count(host) > 1}
    return {n: f"{host}:{n[:6]}" if host in several else host for n, host in hosts.items()}


def _is_loss(ray: ModuleType, error: Exception) -> bool:
    kinds = tuple(getattr(ray.exceptions, name) for name in _SYSTEM)
    return isinstance(error, kinds) and not isinstance(error, ray.exceptions.RayTaskError)


def _described(error: Exception) -> str:
    return first_line(getattr(error, "cause", None) or error, typed=True)
