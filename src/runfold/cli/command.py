"""What all commands share: how one is called, how its errors are said, and the options that find the service."""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from runfold.errors import (
    EXIT_FINDINGS,
    EXIT_FINE,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_UNHEARD,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    RunfoldError,
    UsageError,
    exit_code_of,
)
from runfold.events.log import LogUnavailable
from runfold.events.nats.errors import BrokerError
from runfold.replay.errors import BadMoment, NotFound, ReplayError
from runfold.unheard import print_lasting, silence

if TYPE_CHECKING:
    from collections.abc import Callable

_BAD_USAGE: Final = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What typer raises of a command line that it cannot read; it does not name it itself."""

_PLAIN: Final = (
    ("Invalid value for ", ""),
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "must be a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "must be a number"),
)
"""How those who read the words for typer speak → how people do."""

_REPLAY_EXITS: Final[dict[type[ReplayError], int]] = {NotFound: EXIT_NOT_FOUND, BadMoment: EXIT_USAGE}

Format = Literal["text", "json"]

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="The data directory (or RUNFOLD_DATA).", show_default=False)
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The broker's address (or RUNFOLD_SERVER).", show_default=False),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="A context of the nats program.", show_default=False),
]
OutputOption = Annotated[
    Format, typer.Option("-o", "--output", metavar="FORMAT", help="text or json.", show_default=True)
]

NodesOption = Annotated[
    int, typer.Option("--nodes", metavar="N", help="Nodes that this machine shows, a runner each.", show_default=True)
]
NODES_MAX_COUNT: Final = 64
SHOWN_MAX_COUNT: Final = 200


def run_command(name: str, module: str, words: list[str]) -> int:
    """Load a command and call it with these words; return the exit code."""
    try:
        code = _called(name, module, words)
        sys.stdout.flush()
    except (BrokenPipeError, _Unheard):
        silence(sys.stdout)
        return EXIT_UNHEARD
    except OSError as error:
        # A full disk, a directory that cannot be written or is none: nothing of ours, and the message names it.
        silence(sys.stdout)
        if not _has_directory():
            say_error("the working directory is gone: change to one that exists")
            return EXIT_FINDINGS
        say_error(f"{error.strerror or error}{f': {error.filename}' if error.filename is not None else ''}")
        return EXIT_FINDINGS
    return code


class _Unheard(Exception):
    """Nobody reads what the command prints; typer would make an ordinary failure of the error itself."""


def _told(function: Callable[..., object]) -> Callable[..., object]:
    @wraps(function)
    def call(*args: object, **options: object) -> object:
        try:
            return function(*args, **options)
        except BrokenPipeError as error:
            raise _Unheard from error

    return call


def _has_directory() -> bool:
    """Whether the directory that relative paths are seen from is still there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _called(name: str, module: str, words: list[str]) -> int:
    function: Callable[..., object] = import_module(module).command
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name)(_told(function))
    try:
        code: object = app(args=words, prog_name=f"runfold {name}", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_FINE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except _BAD_USAGE as error:
        say_error(f"{_plain(error)}\n`runfold {name} --help` tells what it takes.")
        return EXIT_USAGE
    except RunfoldError as error:
        say_error(str(error))
        return exit_code_of(error)
    except (BrokerError, LogUnavailable) as error:
        say_error(str(error))
        return EXIT_UNREACHABLE
    except UnicodeEncodeError as error:
        # Bytes of the command line that are no UTF-8 cannot stand in any message, whatever option they came by.
        say_error(f"this is no UTF-8, and cannot be recorded: {error.object[:SHOWN_MAX_COUNT]}")
        return EXIT_USAGE
    except ReplayError as error:
        say_error(str(error))
        return _REPLAY_EXITS.get(type(error), EXIT_FINDINGS)


def _plain(error: Exception) -> str:
    tell = getattr(error, "format_message", None)
    text = str(tell() if tell is not None else error).rstrip(".")
    for theirs, ours in _PLAIN:
        text = text.replace(theirs, ours)
    return text


def check_nodes(nodes: int) -> None:
    """Raise `UsageError` for a number of nodes that a machine cannot show."""
    if not 1 <= nodes <= NODES_MAX_COUNT:
        raise UsageError(f"--nodes: must be 1 to {NODES_MAX_COUNT}, not {nodes}")


def say(text: str) -> None:
    """Tell a person something beside the command's own output."""
    # Loaded only when there is something to say.
    from runfold.cli.show import safe_text

    print_lasting(safe_text(text), sys.stderr)


def say_error(text: str) -> None:
    """Print an error: its first line first, details after it."""
    say(f"runfold: {text}")
