"""The command line: a table of commands, each loaded when it is used, so that `runfold --help` answers at once."""

from __future__ import annotations

import sys
from typing import Final

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("runfold.cli.run", "Train in one shot: live progress, then the result"),
    "up": ("runfold.cli.up", "Start the service here: broker, controller, supervisor, archiver"),
    "submit": ("runfold.cli.submit", "Publish a job; print the run's id"),
    "ls": ("runfold.cli.ls", "List runs, or refused jobs"),
    "get": ("runfold.cli.get", "Show a run's status"),
    "watch": ("runfold.cli.watch", "Follow a run until it ends"),
    "logs": ("runfold.cli.logs", "Show what the ranks printed"),
    "stacks": ("runfold.cli.stacks", "Show what the ranks do right now, and where"),
    "checkpoint": ("runfold.cli.checkpoint", "Ask a run for a checkpoint"),
    "preempt": ("runfold.cli.preempt", "Say that nodes of a run will be taken back"),
    "resize": ("runfold.cli.resize", "Let an elastic run have another size"),
    "admit": ("runfold.cli.admit", "Let a run use a node again that it stays off"),
    "capacity": ("runfold.cli.capacity", "Show what pools have, or let one have another number of slots"),
    "stop": ("runfold.cli.stop", "End a run as finished, at its next checkpoint"),
    "resume": ("runfold.cli.resume", "Go on with a run that is over, from the newest checkpoint in its storage"),
    "abort": ("runfold.cli.abort", "End a run as aborted"),
    "replay": ("runfold.cli.replay", "Tell a run's story from its log, or its state at any point"),
    "diff": ("runfold.cli.diff", "Compare two moments of a run, or two runs"),
    "verify": ("runfold.cli.verify", "Decide a run's log again and compare"),
    "whatif": ("runfold.cli.whatif", "Ask where other settings would have taken a run"),
    "audit": ("runfold.cli.audit", "Check a run's log against every rule"),
    "goodput": ("runfold.cli.goodput", "Tell what a run's time went into"),
    "export": ("runfold.cli.export", "Write a run as one file, as tables, or as a trace"),
    "archive": ("runfold.cli.archive", "Archive a run to a directory or URL"),
    "salvage": ("runfold.cli.salvage", "End and archive one-shot runs that were killed"),
    "restore": ("runfold.cli.restore", "Bring a damaged log back from an archive"),
    "gc": ("runfold.cli.gc", "Give back what the broker keeps of runs that are archived"),
    "observe": ("runfold.cli.observe", "Tell callbacks of a run, from where they were"),
    "doctor": ("runfold.cli.doctor", "Check this machine and the service"),
    "schema": ("runfold.cli.schema", "Print the JSON schema of a kind of message"),
    "version": ("runfold.cli.version", "Print versions"),
}
"""Command → its module, whose `command` is the function, and what it does in one line."""

_AFTER_HELP: Final = """\
runfold COMMAND --help tells a command's options. Every command finds the service by --data DIR (RUNFOLD_DATA),
--server URL (RUNFOLD_SERVER) or --context NAME (a context of the nats program).

Exit codes: 0 fine, 1 the run errored or something was found, 2 usage, 3 aborted, 4 not found, 5 broker unreachable.
"""


def help_text() -> str:
    """Return what `runfold --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()]
    return "\n".join(["Usage: runfold COMMAND [OPTIONS]", "", "Commands:", *lines, "", _AFTER_HELP])


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    first = words[0] if words else "--help"
    if first in ("--help", "-h", "help"):
        print(help_text(), end="")
        return 0
    if first == "--version":
        first = "version"
    if first not in COMMANDS:
        return _unknown(first)
    from runfold.cli.command import run_command

    return run_command(first, COMMANDS[first][0], words[1:])


def _unknown(word: str) -> int:
    from difflib import get_close_matches

    if word.startswith("-"):
        print(f"runfold: {word} comes before the command; options come after it: runfold ls {word} …", file=sys.stderr)
        return 2
    near = get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    print(f"runfold: there is no command {word!r}; {hint}`runfold --help` lists them", file=sys.stderr)
    return 2
