"""Work spread over a Ray cluster: one slot for each item, retried after a lost machine or process.

Ray only assigns runs to machines. Results go into a store that all machines share
(`cluster.shared_store`), so that whatever is finished stays finished, and a run that is taken over
goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tasklab import machine
from tasklab.cli.cluster import ray_joining
from tasklab.cli.cluster.ray_joining import MODE, alive, described, node_names
from tasklab.cli.cluster.shared_store import ClaimedStore, sees_store, shared_folder
from tasklab.errors import TasklabError
from tasklab.storage.store import Store

Work = Callable[[Any, Store], Any]  # an item and the shared store -> what it gives

_log = logging.getLogger(__name__)
_ANSWER = 300.0  # seconds in which a machine must import torch and look for the token
_NO_SLOT = 300.0  # seconds to wait for a machine that can do the work
_POLL = 1.0  # seconds
_BLIND = "does not see the store"


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
            whoever reaches it (no token) and `RAY_AUTHMODE=disabled` does not say that it may.
    """
    ray = ray_joining.load()
    own = ray_joining.connect(ray, address)
    try:
        if address != "local" and os.environ.get(MODE, "").lower() != "disabled":
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
        with_gpus = {n["NodeID"] for n in alive(self.ray) if n["Resources"].get("GPU", 0) >= 1}
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
                        node, value, problem, lost = _received(ray, sent)
                        if lost:
                            (folder / f"{index}-{attempt}.lost").touch()
                            if attempt <= retries:
                                _log.info("%s: begun again", problem)
                                begin(index, attempt + 1)
                                continue
                            problem = f"lost {attempt} times, at last: {problem}"
                        if node and node not in names:
                            names = node_names(ray)
                        node = names.get(node, node)
                        if value == (_BLIND,):
                            raise _unseen([node], folder)
                        yield Outcome(index, value, problem, node, attempt)
                    if _has_slot(ray, slot):
                        last = time.monotonic()
                    elif pending and time.monotonic() - last > _NO_SLOT:
                        raise _no_slot(slot, len(pending))
            finally:
                with contextlib.suppress(Exception):  # the cluster may be what is gone
                    for sent in pending:
                        ray.cancel(sent, force=True)

    def _share(self, folder: Path) -> dict[str, str]:
        names = node_names(self.ray)
        answers = self._ask(sees_store, folder)
        names |= node_names(self.ray)  # with one that came meanwhile
        if blind := [names[node] for node, (sees, _) in answers.items() if not sees]:
            raise _unseen(blind, folder)
        if loose := [names[node] for node, (_, alone) in answers.items() if alone]:
            _log.warning(
                "locks in %s do not hold on node %s: on a network disk without locks (mounted with "
                "nolock?) two machines may compute the same thing at once",
                folder.parents[1], ", ".join(loose),
            )  # fmt: skip
        return names

    def _ask(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, names, answers = self.ray, node_names(self.ray), {}
        task = ray.remote(num_cpus=0, max_retries=1)(function)
        there = {n: NodeAffinitySchedulingStrategy(n, soft=False) for n in names}
        asked = {n: task.options(scheduling_strategy=s).remote(*args) for n, s in there.items()}
        for node, sent in asked.items():
            try:
                answers[node] = ray.get(sent, timeout=_ANSWER)
            except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError) as error:
                # It died a moment ago: the cluster did not know yet.
                _log.info("node %s is gone: %s", names[node], described(error))
            except ray.exceptions.RayError as error:
                raise TasklabError(
                    f"node {names[node]} cannot run tasklab, or not within {_ANSWER:g} s "
                    f"({described(error)}). Is the same tasklab installed on it?"
                ) from error
        return answers


def _refuse_strangers(cluster: Cluster) -> None:
    names = node_names(cluster.ray)
    if open_nodes := [
        names[n] for n, asks in cluster._ask(ray_joining.asks_for_token).items() if not asks
    ]:
        raise TasklabError(
            f"node {', '.join(open_nodes)} of the cluster asks for no token: whoever reaches it "
            "can run any code there. Make one by `ray get-auth-token --generate`, start every node "
            f"with {MODE}=token (the page on clusters tells how), or, in a network that nobody "
            f"else uses, set {MODE}=disabled for this command to take the cluster as it is."
        )


def _fast_processor() -> bool:
    return machine.fast_in_bfloat16()


def _unseen(nodes: Sequence[str], folder: Path) -> TasklabError:
    return TasklabError(
        f"node {', '.join(nodes)} {_BLIND} {folder.parents[1]}: results must go into one folder "
        "that all machines share under the same path. Give it as store_root (--store-root)."
    )


def _received(ray: ModuleType, sent: Any) -> tuple[str, Any, str, bool]:
    """Return node, value, error, and whether the machine or the process was lost."""
    try:
        return *ray.get(sent), "", False
    except ray.exceptions.RayError as error:
        return "", None, described(error), not isinstance(error, ray.exceptions.RayTaskError)


def _has_slot(ray: ModuleType, slot: dict[str, int]) -> bool:
    least = {"CPU": slot["num_cpus"], "GPU": slot["num_gpus"]}
    able = (one["Resources"] for one in alive(ray))
    return any(all(one.get(name, 0) >= count for name, count in least.items()) for one in able)


def _no_slot(slot: dict[str, int], count: int) -> TasklabError:
    return TasklabError(
        f"no machine of the cluster has had {slot['num_cpus']} CPU"
        f"{' and a GPU' * slot['num_gpus']} for {_NO_SLOT:g} s, and {count} items are not done. "
        "Add machines by `ray start --address=HOST:6379`; the same command goes on from there."
    )


def _do(folder: Path, attempt: str, work: Work, item: Any, cpus: int) -> tuple[str, Any]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    if not (folder / "token").is_file():  # a machine that came later than the question
        return node, (_BLIND,)
    torch.set_num_threads(cpus)
    return node, work(item, ClaimedStore(folder, attempt))
