"""Write the documents that are generated from the code: `python docs/tables.py`. A test compares them."""

from pathlib import Path

from runfold.config import CONTEXT_VARIABLE, DATA_VARIABLE, NAMESPACE_VARIABLE, SERVER_VARIABLE
from runfold.events.failures import FAILURE_KINDS
from runfold.peer import INSTEAD

FOLDER = Path(__file__).parent

FAILURES = """\
# What can fail

One table decides what a failure is called, which budget it spends and which of several counts as the first:
`FAILURE_KINDS` in [events/failures.py](../events/failures.py), from which this page is generated. When several ranks
fail in one attempt, the kind further up is the first cause; within a kind the earlier time of the source wins, never
the order of arrival.

An attempt spends at most one unit of one budget. The limits are `failure.max_failures` (worker),
`failure.controller_failure_limit` (startup), `failure.max_preemption_failures` (preemption) and `failure.max_hangs`
(hang); −1 is unlimited, 0 allows none.

| kind | what it means | budget while running | before that | counts for node exclusion |
|---|---|---|---|---|
"""

ENVIRONMENT = """\
# Environment variables

Read once, when a command starts; an option of the command weighs more.

| variable | what it sets | option |
|---|---|---|
| `{data}` | the data directory; the user's own by default | `--data DIR` |
| `{server}` | the broker's address, instead of the data directory's `connection.json` | `--server URL` |
| `{context}` | a context of the `nats` program | `--context NAME` |
| `{namespace}` | the first token of every subject; `runfold` by default | |
| `NO_COLOR` | no colours in what is printed | |

Ranks inherit the supervisor's environment, then the job's `env`. `secret_env` names variables that are taken from the
supervisor's environment and never written down.

## What became of the variables of Ray Train

They are not read. `runfold doctor` and the first entry of a run's log warn of each one that is set. What is named here
is a field of the job: `--set PATH=VALUE` on the command line, the same name in Python and in a job file.

| variable | instead |
|---|---|
"""


def failures() -> str:
    """The page of failure kinds."""
    rows = [
        f"| `{kind}` | {rule.meaning} | {rule.running or 'never retried'} | {rule.starting or 'never retried'} "
        f"| {'yes' if rule.platform else 'no'} |\n"
        for kind, rule in FAILURE_KINDS.items()
    ]
    return FAILURES + "".join(rows)


def environment() -> str:
    """The page of environment variables."""
    head = ENVIRONMENT.format(
        data=DATA_VARIABLE, server=SERVER_VARIABLE, context=CONTEXT_VARIABLE, namespace=NAMESPACE_VARIABLE
    )
    return head + "".join(f"| `{name}` | {_marked(instead)} |\n" for name, instead in INSTEAD.items())


def _marked(instead: str) -> str:
    """Fields as code."""
    if instead.startswith("nothing"):
        return instead
    path, comma, rest = instead.partition(",")
    return f"`{path}`{comma}{rest}"


PAGES = {"failures.md": failures, "environment.md": environment}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
