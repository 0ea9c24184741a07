"""The settings of this process, read once from the environment into a frozen object; nobody else looks there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runfold.events.subjects import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA_VARIABLE: Final = "RUNFOLD_DATA"
SERVER_VARIABLE: Final = "RUNFOLD_SERVER"
CONTEXT_VARIABLE: Final = "RUNFOLD_CONTEXT"
NAMESPACE_VARIABLE: Final = "RUNFOLD_NAMESPACE"
CALLBACKS_VARIABLE: Final = "RUNFOLD_CALLBACKS"
WEBHOOK_URL_VARIABLE: Final = "RUNFOLD_WEBHOOK_URL"
WEBHOOK_SECRET_VARIABLE: Final = "RUNFOLD_WEBHOOK_SECRET"  # noqa: S105  # the name of a variable, no secret
SECRET_VARIABLES: Final = (SERVER_VARIABLE, WEBHOOK_SECRET_VARIABLE)
"""What must not reach user code of others; a server's address may hold a password."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are found, unless an option of the command says otherwise.

    `contexts_dir` holds the contexts of the `nats` program; `peer_variables` are the RAY_TRAIN_* variables that are
    set, and not read by runfold; `no_color` is what NO_COLOR asks for. `callbacks` are import paths of callbacks that
    are added to every run; `webhook_url` and `webhook_secret` are for a webhook that is made without arguments.
    """

    data_dir: Path
    server: str | None
    context: str | None
    namespace: str
    contexts_dir: Path
    peer_variables: tuple[str, ...]
    user: str
    no_color: bool
    callbacks: tuple[str, ...] = ()
    webhook_url: str | None = None
    webhook_secret: str | None = None


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment (this process's, unless another is given)."""
    env = os.environ if environ is None else environ
    config_home = env.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Settings(
        data_dir=Path(env.get(DATA_VARIABLE) or _default_data_dir()).expanduser().absolute(),
        server=env.get(SERVER_VARIABLE) or None,
        context=env.get(CONTEXT_VARIABLE) or None,
        namespace=env.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE,
        contexts_dir=Path(config_home) / "nats" / "context",
        peer_variables=tuple(sorted(name for name in env if name.startswith("RAY_TRAIN_"))),
        no_color=bool(env.get("NO_COLOR")),
        user=_user(env),
        callbacks=_callbacks(env.get(CALLBACKS_VARIABLE, "")),
        webhook_url=env.get(WEBHOOK_URL_VARIABLE) or None,
        webhook_secret=env.get(WEBHOOK_SECRET_VARIABLE) or None,
    )


def _callbacks(text: str) -> tuple[str, ...]:
    """Return import paths as `module:name`; `package.module.Name` is the peer's way to write one."""
    paths = [path.strip() for path in text.split(",") if path.strip()]
    return tuple(path if ":" in path else ":".join(path.rsplit(".", 1)) for path in paths)


def child_environment() -> dict[str, str]:
    """Return the environment for a process of our own: this one's, with the working directory kept off its path.

    What may hold a secret of runfold's stays here: ranks inherit the supervisor's environment.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    return {**inherited, "PYTHONSAFEPATH": "1"}


def _user(env: Mapping[str, str]) -> str:
    """Return what this user is called: as the environment says, or as the machine knows them."""
    import getpass

    if name := env.get("USER") or env.get("LOGNAME"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _default_data_dir() -> str:
    from platformdirs import user_data_dir

    return user_data_dir("runfold", appauthor=False)
