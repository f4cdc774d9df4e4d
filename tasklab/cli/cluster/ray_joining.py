"""Load Ray without its telemetry, join a cluster, and list the cluster's nodes."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from types import ModuleType
from typing import Any

from tasklab.errors import TasklabError, first_line

MODE = "RAY_AUTH_MODE"  # Ray's own switch: token or disabled
_OBJECTS = 100 * 2**20  # bytes of Ray's own memory on this machine: results do not go through it
_REACHED = 5.0  # seconds until a cluster's first machine answers


def load() -> ModuleType:
    """Return the module `ray`; raise a `TasklabError` where it is not installed."""
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


def connect(ray: ModuleType, address: str) -> bool:
    """Join a cluster, or start one at `local`; return whether this call did.

    Args:
        ray: The module.
        address: Of a cluster, as `ray.init` takes it.

    Raises:
        TasklabError: If there is no such cluster.
    """
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


def asks_for_token() -> bool:
    """Return whether this machine asks for the cluster's token."""
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:  # not public: of a release that has it elsewhere
        return os.environ.get(MODE, "").lower() == "token"
    return is_token_auth_enabled()


def alive(ray: ModuleType) -> list[dict[str, Any]]:
    """Return the nodes of a cluster that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def node_names(ray: ModuleType) -> dict[str, str]:
    """Return names by id: that of the host, with a part of the id where a host has several."""
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in alive(ray)}
    several = {host for host in hosts.values() if list(hosts.values()).count(host) > 1}
    return {n: f"{host}:{n[:6]}" if host in several else host for n, host in hosts.items()}


def described(error: Exception) -> str:
    """Return the first line of an error of Ray, or of its cause on the other machine."""
    return first_line(getattr(error, "cause", None) or error, typed=True)
