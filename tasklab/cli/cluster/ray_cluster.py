"""Runs spread over a Ray cluster whose machines share a store.

Ray assigns runs to machines. Results go into the store, so that whatever is finished stays
finished, and a run whose machine or process was lost continues from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tasklab import machine
from tasklab.errors import TasklabError, first_line
from tasklab.storage import atomic
from tasklab.storage.store import Store
from tasklab.storage.tensors import explained

Work = Callable[[Any, Store], Any]  # an item and the shared store -> what it gives

_log = logging.getLogger(__name__)
_MODE = "RAY_AUTH_MODE"  # Ray's own switch: token or disabled
_OBJECTS = 100 * 2**20  # bytes of Ray's own memory on this machine: results do not go through it
_REACHED = 5.0  # seconds until a cluster's first machine answers
_ANSWER = 300.0  # seconds in which a machine must import torch and look for the token
_NO_SLOT = 300.0  # seconds without a result, after which some machine must have a slot
_CUT_OFF = 120.0  # seconds in which a machine that was cut off has stopped by itself


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
        address: As `ray.init` takes it.
        gpus: Whether a slot has a GPU; `None` asks whether the cluster has any.

    Raises:
        TasklabError: If Ray is not installed, there is no such cluster, or it runs the code of
            whoever reaches it (no token) and `RAY_AUTH_MODE=disabled` does not say that it may.
    """
    ray = _load()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        cluster = Cluster(ray, bool(ray.cluster_resources().get("GPU")) if gpus is None else gpus)
        if address != "local" and os.environ.get(_MODE, "").lower() != "disabled":
            cluster.refuse_strangers()
        yield cluster
    finally:
        if own:
            ray.shutdown()


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, ray: ModuleType, gpus: bool) -> None:
        self.ray, self.gpus = ray, gpus

    def refuse_strangers(self) -> None:
        """Raise a `TasklabError` unless every machine asks for the cluster's token."""
        asked = self._ask(lambda: os.environ.get(_MODE, "").lower() == "token")
        if open_nodes := [_name(node) for node, token in asked if not token]:
            raise TasklabError(
                f"node {', '.join(open_nodes)} of the cluster asks for no token: whoever reaches "
                "it can run any code there. Make one by `ray get-auth-token --generate` and start "
                f"every node with {_MODE}=token (the page on clusters shows how), or set "
                f"{_MODE}=disabled for this command, in a network that nobody else uses."
            )

    def bfloat16(self) -> bool:
        """Return whether every machine with slots is fast at bfloat16: its GPUs, or processor."""
        if not self.gpus:
            return all(fast for _, fast in self._ask(lambda: machine.fast_in_bfloat16()))
        asked = self._ask(machine.capabilities)
        cards = [able for node, able in asked if node["Resources"].get("GPU")]
        return bool(cards) and all(able and min(able) >= machine.BFLOAT16 for able in cards)

    def spread(
        self, items: Sequence[Any], work: Work, *, root: Path, cpus: int = 1, retries: int = 3
    ) -> Generator[Outcome]:
        """Run `work` on every item, each in a slot of the cluster; yield outcomes as they come.

        An item starts again if its machine or process was lost, but not if the work itself failed.
        If the caller stops, running items are stopped too.

        Args:
            items: Arguments that pickle can send to other machines.
            work: Function of an item and the store; a `TasklabError` that it raises ends all.
            root: Folder of the store, which every machine must see.
            cpus: Cores of a slot.
            retries: How often an item starts again at most.

        Raises:
            TasklabError: If a machine does not see the store, or none is left to do the work.
        """
        if not items:
            return
        pending: dict[Any, tuple[int, int]] = {}
        gpus = int(self.gpus)
        # Ray would start a run that fills the memory again for ever.
        task = self.ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_do)

        def begin(item: int, attempt: int) -> None:
            sent = task.remote(token, work, items[item], cpus, attempt > 1)
            pending[sent] = item, attempt

        with contextlib.ExitStack() as held:
            with explained(root):  # a machine that sees this folder shares the store
                (root / "tmp").mkdir(parents=True, exist_ok=True)
                token = held.enter_context(atomic.room(root / "tmp", "grid"))
            if blind := [_name(node) for node, sees in self._ask(token.is_dir) if not sees]:
                raise _unseen(blind, token)
            try:
                for item in range(len(items)):
                    begin(item, 1)
                while pending:
                    ready, _ = self.ray.wait(list(pending), timeout=_NO_SLOT)
                    for sent in ready:
                        item, attempt = pending.pop(sent)
                        node, value, problem, lost = self._received(sent)
                        if lost and attempt <= retries:
                            _log.info("%s: begun again", problem)
                            begin(item, attempt + 1)
                            continue
                        times = f"lost {attempt} times, at last: " if lost else ""
                        yield Outcome(item, value, times + problem, node, attempt)
                    if not ready and not self._has({"CPU": cpus, "GPU": gpus}):
                        raise TasklabError(
                            f"no machine of the cluster has {cpus} CPU{' and a GPU' * gpus}, and "
                            f"{len(pending)} items are not done. Add machines by `ray start "
                            "--address=HOST:6379`; the same command goes on from there."
                        )
            finally:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    for sent in pending:
                        self.ray.cancel(sent, force=True)

    def _ask(self, function: Callable[[], Any]) -> list[tuple[Mapping[str, Any], Any]]:
        """Call a function on every machine; return the machine's description and its answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self.ray.remote(num_cpus=0, max_retries=1)(lambda: function())
        asked, answers, errors = [], [], self.ray.exceptions
        for node in self._alive():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked.append((node, task.options(scheduling_strategy=there).remote()))
        for node, sent in asked:
            try:
                answers.append((node, self.ray.get(sent, timeout=_ANSWER)))
            except (errors.NodeDiedError, errors.TaskUnschedulableError) as error:  # just now
                _log.info("node %s is gone: %s", _name(node), _described(error))
            except errors.RayError as error:
                raise TasklabError(
                    f"node {_name(node)} cannot run tasklab, or not within {_ANSWER:g} s "
                    f"({_described(error)}). Is the same tasklab installed on it?"
                ) from error
        return answers

    def _received(self, sent: Any) -> tuple[str, Any, str, bool]:
        """Return node, value, error, and whether the machine or the process was lost."""
        try:
            return *self.ray.get(sent), "", False
        except self.ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), TasklabError):
                raise cause from error
            lost = not isinstance(error, self.ray.exceptions.RayTaskError)
            return "", None, _described(error), lost

    def _alive(self) -> list[Mapping[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _has(self, slot: Mapping[str, int]) -> bool:
        able = [node["Resources"] for node in self._alive()]
        return any(all(one.get(name, 0) >= n for name, n in slot.items()) for one in able)


def _load() -> ModuleType:
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


def _connect(ray: ModuleType, address: str) -> None:
    local = {"include_dashboard": False, "object_store_memory": _OBJECTS}
    more = {"log_to_driver": False} | (local if address == "local" else {})
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon:  # Ray itself asks for minutes
            socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
        ray.init(address=address, logging_level=logging.WARNING, **more)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise TasklabError(
            f"cannot join a Ray cluster at {address!r} ({first_line(error)}). Start one by `ray "
            "start --head` on one machine and `ray start --address=HOST:6379` on the others, and "
            "run this on one of them; address 'local' needs none."
        ) from error


def _do(token: Path, work: Work, item: Any, cpus: int, again: bool) -> tuple[str, Any]:
    if not token.is_dir():  # a machine that came later than the question
        raise _unseen([socket.gethostname()], token)
    torch.set_num_threads(cpus)
    # The server of a network disk may keep the lock of a lost attempt: until its lease ends (NFS
    # 4), or until the machine is back (NFS 3). The next attempt goes on without it.
    store = Store(token.parents[1], patience=_CUT_OFF if again else None)
    return socket.gethostname(), work(item, store)


def _name(node: Mapping[str, Any]) -> str:
    return str(node["NodeManagerHostname"])


def _described(error: Exception) -> str:
    """Return the first line of an error of Ray, or of its cause on the other machine."""
    return first_line(getattr(error, "cause", None) or error, typed=True)


def _unseen(nodes: Sequence[str], token: Path) -> TasklabError:
    return TasklabError(
        f"node {', '.join(nodes)} does not see the store {token.parents[1]}: give a folder that "
        "all machines share under the same path as store_root (--store-root)."
    )
