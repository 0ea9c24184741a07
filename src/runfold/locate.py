"""Where the service is: an address given, a context of the `nats` program, or `connection.json` of a data directory."""

from __future__ import annotations

import os.path
import re
import shlex
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

from runfold.config import DATA_VARIABLE, NAMESPACE_VARIABLE, Settings, read_settings
from runfold.connectionfile import connection_of
from runfold.errors import UnreachableError, UsageError
from runfold.events.job import RUN_ID
from runfold.events.subjects import Subjects
from runfold.once import is_left
from runfold.servicelock import is_kept_running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

PROBE_TIMEOUT_S: Final = 1.0
SCHEMES: Final = ("nats", "tls", "ws", "wss")
ONCE_FOLDER: Final = "once"
ARCHIVE_FOLDER: Final = "archive"
STORAGE_FOLDER: Final = "storage"
"""Where runs that name no storage keep their checkpoints."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker to speak to as a client.

    `local`: found by a data directory, so on this machine. `once`: it serves one run, and ends with it. `monitor` is
    where it tells of its health, if that is known. `data_dir` is where it was found: while somebody keeps it running
    there, it is waited for when it is away.
    """

    url: str
    namespace: str
    local: bool
    once: bool = False
    monitor: str = ""
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """The answer to "where are things?" for one command: the data directory, and the service if one was named.

    `named` is set when an address or context was given, so that nothing else may be tried in its place. `given` are
    the options that said so, for commands that a person is told of.
    """

    data_dir: Path
    settings: Settings
    named: Address | None
    given: tuple[str, ...] = ()

    def hint(self, *words: str) -> str:
        """Return a command that asks the same place, as it is typed; credentials are left for its user to fill in."""
        return shlex.join(["runfold", *words, *self.given])

    @property
    def archive_dir(self) -> Path:
        """Where ended runs are kept."""
        return self.data_dir / ARCHIVE_FOLDER

    def service(self) -> Address | None:
        """Return the service that was named, or the one of the data directory if there is one; None without one."""
        return self.named or answering(self.data_dir)

    def services(self) -> Iterator[Address]:
        """Yield the service, then every one-shot run's own broker."""
        if (service := self.service()) is not None:
            yield service
        if self.named is None:
            for folder in sorted((self.data_dir / ONCE_FOLDER).glob("*")):
                if (address := answering_once(folder)) is not None:
                    yield replace(address, once=True)

    def killed(self) -> list[str]:
        """Return the one-shot runs that were killed: their directories were left behind, and nobody lives there."""
        if self.named is not None:
            return []
        return [folder.name for folder in sorted((self.data_dir / ONCE_FOLDER).glob("*")) if _is_left(folder)]

    def was_killed(self, run: str) -> bool:
        """Whether this is the name of a one-shot run that was killed."""
        is_name = self.named is None and RUN_ID.fullmatch(run) is not None
        return is_name and _is_left(self.data_dir / ONCE_FOLDER / run)

    def make(self) -> None:
        """Make the data directory; raise `UsageError` where there can be none."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--data: {self.data_dir} cannot be created: {error.strerror}; name another one by --data DIR"
            ) from error

    @property
    def stopped(self) -> bool:
        """Whether the data directory is that of a service that does not run now."""
        return self.named is None and self.service() is None and connection_of(self.data_dir) is not None

    def required_service(self) -> Address:
        """Return the service; raise `UnreachableError` when there is none."""
        address = self.service()
        if address is None:
            raise UnreachableError(
                f"no service answers in {self.data_dir}{'' if self.data_dir.is_dir() else ', which is no directory'}\n"
                f"Start one with `runfold up`, or name one by --data DIR, --server URL or --context NAME."
            )
        return address


def find(data: str | PathLike[str] | None = None, server: str | None = None, context: str | None = None) -> Where:
    """Return where things are for these options; what is not given is taken from the environment."""
    settings = read_settings()
    if data is not None and not str(data):
        raise UsageError("--data: names no directory")
    _check_namespace(settings.namespace)
    data_dir = Path(data).expanduser().absolute() if data is not None else settings.data_dir
    if os.path.isfile(data_dir):  # noqa: PTH113  # that of Path raises where nobody may look
        option = "--data" if data is not None else DATA_VARIABLE
        raise UsageError(f"{option}: {data_dir} is a file, not a directory; name another one")
    if server is not None and context is not None:
        raise UsageError("--server and --context both name a broker; give one of them")
    explicit = any(option is not None for option in (data, server, context))
    # An option outweighs the environment, a data directory given outweighs a server that was not.
    if server is None and context is None and data is None:
        server, context = settings.server, None if settings.server else settings.context
    named: Address | None = None
    if server is not None:
        urls = ",".join(_with_scheme(url.strip()) for url in server.split(","))
        named = Address(urls, settings.namespace, local=False)
    elif context is not None:
        named = Address(_context_url(settings.contexts_dir, context), settings.namespace, local=False)
    options = {"--data": data, "--server": _without_secrets(server or ""), "--context": context}
    asked = tuple(word for name, value in options.items() if value for word in (name, str(value)))
    return Where(data_dir=data_dir, settings=settings, named=named, given=asked if explicit else ())


def _without_secrets(server: str) -> str:
    urls = [url.strip() for url in server.split(",")]
    return ",".join(re.sub(r"(^|://)[^/]*@", r"\1USER:PASSWORD@", url) for url in urls)


def _check_namespace(namespace: str) -> None:
    try:
        Subjects(namespace)
    except ValueError as error:
        raise UsageError(f"{NAMESPACE_VARIABLE}: {error}") from None


def answering(data_dir: Path) -> Address | None:
    """Return the address of a data directory's service if something listens there, or is being started there again.

    Raises:
        UnreachableError: the file that would tell is damaged; or it is lost, and was waited for while a service runs.
    """
    file = connection_of(data_dir)
    if file is None or not (listens(file.server) or is_kept_running(data_dir)):
        return None
    return Address(file.url, file.namespace, local=True, monitor=file.monitor, data_dir=data_dir)


def answering_once(folder: Path) -> Address | None:
    """Return the address of a one-shot run's broker; None when nobody answers, or nobody knows where it would.

    What a machine that went down has left half written keeps nobody from other runs.
    """
    try:
        return answering(folder)
    except UnreachableError:
        return None


def _is_left(folder: Path) -> bool:
    return is_left(folder) and answering_once(folder) is None


def listens(server: str) -> bool:
    """Return whether something takes connections at an address; it need not be a broker."""
    try:
        parts = urlsplit(server)
        socket.create_connection((parts.hostname or "", parts.port or 4222), PROBE_TIMEOUT_S).close()
    except (OSError, ValueError):  # or it is no address at all
        return False
    return True


class _Context(msgspec.Struct):
    """The part of a context file of the `nats` program that we can use."""

    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""


def _context_url(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    try:
        context = msgspec.json.decode(path.read_bytes(), type=_Context)
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise UsageError(f"--context: there is no context {name!r} in {folder}; there are: {known}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"--context: {path} cannot be read: {error}") from None
    if context.creds or context.nkey:
        raise UsageError(
            f"--context: {path} uses creds or nkey, which runfold cannot; use user and password, or a token"
        )
    if not context.url:
        raise UsageError(f"--context: {path} names no url")
    return ",".join(_with_user(_with_scheme(url.strip()), context) for url in context.url.split(","))


def _with_user(url: str, context: _Context) -> str:
    if "@" in url or not (context.user or context.token):
        return url
    parts = (context.user, context.password) if context.user else (context.token,)
    secret = ":".join(quote(part, safe="") for part in parts)
    scheme, _, address = url.partition("://")
    return f"{scheme}://{secret}@{address}"


def _with_scheme(url: str) -> str:
    """Return an address that can be connected to, or say what is wrong with it, its credentials left out."""
    full = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(full)
        known = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        shown = full.rpartition("@")[2]
        raise UsageError(f"{shown!r} is no address of a broker: write it as nats://host:port ({', '.join(SCHEMES)})")
    return full
