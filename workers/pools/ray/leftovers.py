"""What a cluster of one's own leaves behind: its session's directory, with logs, sockets and spilled objects."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

_SESSION: Final = "session_"
_LATEST: Final = "session_latest"


def session_of(context: object) -> Path | None:
    """Return the directory of the session that `ray.init` began, from what it returned; None if that does not say."""
    info: object = getattr(context, "address_info", None)
    if not isinstance(info, dict):
        return None
    told = cast("Mapping[str, object]", info).get("session_dir")
    return Path(told) if isinstance(told, str) and told else None


def remove_session(folder: Path) -> None:
    """Remove a session's directory, and the link that calls it the latest; what is no such directory stays.

    What cannot be removed stays too: a process of the cluster that is slow to end may still write there.
    """
    if not (folder.is_absolute() and folder.name.startswith(_SESSION)) or folder.is_symlink() or not folder.is_dir():
        return
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.with_name(_LATEST)
    with contextlib.suppress(OSError):
        if latest.is_symlink() and latest.readlink().name == folder.name and not folder.exists():
            latest.unlink()
