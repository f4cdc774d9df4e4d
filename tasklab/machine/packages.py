"""Versions of dependencies, without importing them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from tasklab import __version__

PACKAGES = {  # as they are imported -> as they are installed
    "torch": "torch",
    "torchvision": "torchvision",
    "open_clip": "open_clip_torch",
    "timm": "timm",
    "transformers": "transformers",
}


def versions(installed: Callable[[str], str] = importlib.metadata.version) -> dict[str, str | None]:
    """Return the versions of tasklab's dependencies, without importing them.

    Args:
        installed: Name of a package -> its version.
    """
    present: dict[str, str | None] = {"python": platform.python_version(), "tasklab": __version__}
    for name, package in PACKAGES.items():
        try:
            present[name] = installed(package)
        except importlib.metadata.PackageNotFoundError:
            present[name] = None
    return present


def unpaired(present: Mapping[str, str | None], wanted: list[str] | None) -> str | None:
    """Return why torch and torchvision do not fit each other, or `None` if they may.

    Args:
        wanted: Requirements of torchvision, as in its metadata.

    >>> unpaired({"torch": "2.5.0+cpu", "torchvision": "0.20.1+cpu"}, ["torch==2.5.1"])
    'torchvision 0.20.1+cpu asks for torch ==2.5.1, not 2.5.0+cpu: install both anew, together.'
    """
    torch, vision = present["torch"], present["torchvision"]
    if torch is None or vision is None:
        return None
    advice = "install both anew, together."
    try:
        builds = {Version(torch).local, Version(vision).local} - {None}
        if len(builds) > 1:
            return f"torch {torch} and torchvision {vision} are of different builds: {advice}"
        for line in wanted or []:
            need = Requirement(line)
            applies = need.marker is None or need.marker.evaluate({"extra": ""})
            public = Version(torch).public
            if need.name == "torch" and applies and not need.specifier.contains(public, True):
                asks = f"torchvision {vision} asks for torch {need.specifier}"
                return f"{asks}, not {torch}: {advice}"
    except (InvalidRequirement, InvalidVersion):
        return None
    return None
