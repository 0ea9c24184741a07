"""Write what the documents take from the code: `python docs/tables.py`. A test compares it.

Generated are the pages of tables whole, and in the README what is printed of the demo's second run, whose recorded log
is in tests/golden.
"""

import io
import re
from pathlib import Path

from runfold.config import (
    CALLBACKS_VARIABLE,
    CONTEXT_VARIABLE,
    DATA_VARIABLE,
    NAMESPACE_VARIABLE,
    SERVER_VARIABLE,
    WEBHOOK_SECRET_VARIABLE,
    WEBHOOK_URL_VARIABLE,
)
from runfold.events.entry import Head
from runfold.events.facts import RankExited
from runfold.events.failures import FAILURE_KINDS
from runfold.events.fold import fold
from runfold.events.limits import STARTUP_BACKOFF_MAX_S, STARTUP_BACKOFF_S
from runfold.events.state import RunState
from runfold.explain import ending_text
from runfold.follow import Told
from runfold.peer import INSTEAD
from runfold.printed import output_line
from runfold.progress import PlainProgress
from runfold.replay.history import History
from runfold.replay.render import render_story, render_timeline
from runfold.replay.rules import RULES, Rule
from runfold.replay.screen import on_screen
from runfold.replay.source import load
from runfold.replay.story import story
from runfold.replay.timeline import timeline
from runfold.replay.uses import USES

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
RECORDED = FOLDER.parent / "tests" / "golden" / "golden-digits-retry.jsonl"

FAILURES = """\
# What can fail

One table decides what a failure is called, which budget it spends and which of several counts as the first:
`FAILURE_KINDS` in [events/failures.py](../events/failures.py), from which this page is generated. When several ranks
fail in one attempt, the kind further up is the first cause; within a kind the earlier time of the source wins, never
the order of arrival.

An attempt spends at most one unit of one budget. The limits are `failure.max_failures` (worker),
`failure.controller_failure_limit` (startup), `failure.max_preemption_failures` (preemption) and `failure.max_hangs`
(hang); −1 is unlimited, 0 allows none.

Four more settings of `failure` say how often and how soon is tried again:

- `backoff_s` (0) is waited before the first restart, twice as long before each next one, `backoff_max_s` at most.
  Failures to start wait {startup:g} s, then twice as long each time, {startup_max:g} s at most, whatever is set; after
  nodes were taken back a new group is placed no sooner than `timeouts.coalesce_s` (5 s) after the first notice, so that
  further ones are one with it ([preemption.md](preemption.md)).
- `reset_after_progress`: so many reports of rank 0 in an attempt make the worker budget whole again.
- `repeat_limit`: a run ends early when the same error of a rank at the same step comes so many times in a row, whatever
  budget is left.
- `node_exclude_after`: after so many failures of a node later attempts stay off it, until `runfold admit`.

After a failure of some places the others are kept, with their runners; see
[restarts.md](restarts.md#when-some-of-the-places-are-lost).

With `scaling.replica_group_size` a failure is that of its replica group: the group is replaced, at the same price,
while the others train on; see [preemption.md](preemption.md#replica-groups).

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
| `{callbacks}` | callbacks that are added to every run asked for here: `module:name`, commas between | |
| `{webhook_url}`, `{webhook_secret}` | for a `runfold.Webhook()` that is made without arguments | |
| `NO_COLOR` | no colours in what is printed | |

Ranks inherit the supervisor's environment, but for `{server}` and `{webhook_secret}`, then the job's
`env`. `secret_env` names variables that are taken from the supervisor's environment and never written down.
On a Ray cluster ranks inherit their node's environment, then `env_vars` of `runtime_env`. A cluster that `up` starts
itself sends no usage statistics, unless `RAY_USAGE_STATS_ENABLED` says otherwise.

What ranks print is kept by the broker, and archived with the run: of each rank and attempt the last 1024 batches, of at
most 64 KiB each. The first of them hold what was printed within a quarter of a second; later ones, while little is
printed, that of five seconds: the last 80 minutes at the least are kept of what is printed slowly. `runfold logs` says
how many lines are no longer kept, and how many bytes were printed faster than four batches a second.

## What became of the variables of Ray Train

They are not read. `runfold doctor` and the first entry of a run's log warn of each one that is set. What is named here
is a field of the job: `--set PATH=VALUE` on the command line, the same name in Python and in a job file.

| variable | instead |
|---|---|
"""

AUDIT = """\
# The rules of the audit

`runfold audit RUN`, `audit --all`, and `audit` of an archive's directory or URL, of an exported file or of a directory
of such, check every rule and end with 1 when one is broken; `-o json` prints each rule with its findings. The table is
generated from [replay/rules.py](../replay/rules.py).

Voices that were stale, foreign or malformed and changed nothing are counted, and are no finding.

| rule | what it means | what to do when it is broken |
|---|---|---|
"""

GOODPUT = """\
# Goodput

`runfold goodput RUN [--since N|TIME] [--until N|TIME]` tells what a run's clock went into, from the log alone.
The parts add up to it exactly. The table is generated from [replay/uses.py](../replay/uses.py).

Progress is kept up to the report whose checkpoint was committed, and lost behind it when its attempt ends otherwise
than finished. A rank says with its reports how long it waited for data and checkpoints (`spent_s`); of an attempt the
rank that waited longest counts. A failure's cost begins when it happened, not when it was heard of. While
some replica groups train, the others' being replaced costs nothing here; once nobody trains it is `recovery`,
`preemption` or `waiting_for_capacity`. From when the places of a group that failed are free, a wait for room is
`waiting_for_capacity`, of an elastic run as of any other.

| part | what it means |
|---|---|
"""


def _advice(rule: Rule) -> str:
    return f"{rule.advice}. Where every entry can be read: {rule.advice_beside}" if rule.advice_beside else rule.advice


def audit() -> str:
    """The page of the audit's rules."""
    return AUDIT + "".join(f"| `{rule.id}` | {rule.meaning} | {_advice(rule)} |\n" for rule in RULES)


def goodput() -> str:
    """The page of what time goes into."""
    return GOODPUT + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in USES.items())


def failures() -> str:
    """The page of failure kinds."""
    rows = [
        f"| `{kind}` | {rule.meaning} | {rule.running or 'never retried'} | {rule.starting or 'never retried'} "
        f"| {'yes' if rule.platform else 'no'} |\n"
        for kind, rule in FAILURE_KINDS.items()
    ]
    said = FAILURES.format(startup=STARTUP_BACKOFF_S, startup_max=STARTUP_BACKOFF_MAX_S)
    return said + "".join(rows)


def environment() -> str:
    """The page of environment variables."""
    head = ENVIRONMENT.format(
        data=DATA_VARIABLE,
        server=SERVER_VARIABLE,
        context=CONTEXT_VARIABLE,
        namespace=NAMESPACE_VARIABLE,
        callbacks=CALLBACKS_VARIABLE,
        webhook_url=WEBHOOK_URL_VARIABLE,
        webhook_secret=WEBHOOK_SECRET_VARIABLE,
    )
    return head + "".join(f"| `{name}` | {_marked(instead)} |\n" for name, instead in INSTEAD.items())


def _marked(instead: str) -> str:
    """Fields as code."""
    if instead.startswith("nothing"):
        return instead
    path, comma, rest = instead.partition(",")
    return f"`{path}`{comma}{rest}"


def watched(history: History) -> str:
    """What `runfold run` printed of a run."""
    out = io.StringIO()
    progress = PlainProgress(out)
    state: RunState | None = None
    for link in history.links:
        state = fold(state, link.entry)
        progress.entry(Told(link.entry, state, Head(n=link.entry.n, hash=link.hash)))
        for item in link.entry.inputs:
            if isinstance(item, RankExited) and item.exit_code == 0:
                # What was shown while it ran; the log has the end of it.
                for line in item.last_lines.splitlines():
                    progress.printed(output_line(item.rank, line))
    return f"{out.getvalue()}\n{ending_text(state) if state is not None else ''}\n"


def replayed(history: History) -> str:
    """What `runfold replay` prints of it."""
    lines = [*render_story(story(history)), "", *render_timeline(on_screen(timeline(history)))]
    return "".join(f"{line}\n" for line in lines)


def readme() -> str:
    """The README with its two blocks of output renewed; each begins with its command."""
    history = load(RECORDED)
    text = README.read_text(encoding="utf-8")
    for command, output in (("run", watched(history)), ("replay", replayed(history))):
        block = re.compile(rf"(```text\n\$ runfold {command} [^\n]*\n\n).*?(```)", re.DOTALL)
        found = block.search(text)
        if found is None:
            raise ValueError(f"README.md has no block of `runfold {command}`")
        text = f"{text[: found.end(1)]}{output}{text[found.start(2) :]}"
    return text


PAGES = {
    FOLDER / "failures.md": failures,
    FOLDER / "environment.md": environment,
    FOLDER / "audit.md": audit,
    FOLDER / "goodput.md": goodput,
    README: readme,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
