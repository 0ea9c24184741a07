"""The rules of the audit. Each has an id, says in one line what it means and in one what to do, and checks a history.

A rule is a function from evidence (`finding.py`) to findings; another rule is one more row of `RULES`.
"""

from __future__ import annotations

from typing import Final

from runfold.replay import rules_log as log
from runfold.replay import rules_run as run
from runfold.replay.finding import Check, Evidence, Finding, Rule, damages, walked

__all__ = ["RULES", "Check", "Evidence", "Finding", "Rule"]

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="whole",
        meaning="the file, archive or stream is read to its end, and every part is as it was written",
        advice="take another copy; the entries named here and behind them are lost in this one",
        advice_beside="no entry is lost, only what is named here; look for it in another copy",
        check=log.whole,
    ),
    Rule(
        id="chain",
        meaning="each entry names the hash of the bytes before it, so none was changed, and none put in between",
        advice="believe nothing from that entry on; restore the run's log from an archive that is clean",
        check=damages("chain", "break"),
    ),
    Rule(
        id="numbering",
        meaning="entries are numbered 0, 1, 2, … without a hole",
        advice="look for the missing entry in another copy; believe nothing behind the hole",
        check=damages("numbering", "gap"),
    ),
    Rule(
        id="head",
        meaning="the log holds every head that was kept outside it, and ends no earlier",
        advice="the log lost its end, or its end was rewritten: compare with the archive and the assignment",
        check=log.head,
    ),
    Rule(
        id="strays",
        meaning="nothing but the controller's entries stands on the subject or in the file",
        advice="harmless to the run, since it is skipped; find out who may publish on log subjects",
        check=log.strays,
    ),
    Rule(
        id="first-entry",
        meaning="entry 0, and no other, accepts the run and names its first controller",
        advice="this is not the beginning of a run's log; report it with an export",
        check=log.first_entry,
    ),
    Rule(
        id="legal-edges",
        meaning="every change of state starts from the state that was, and is an edge of the state machine",
        advice="a decider is wrong, or the log was written by something else; report it with an export",
        check=log.legal_edges,
    ),
    Rule(
        id="terminal-final",
        meaning="finished, errored and aborted are never left, and nothing is decided after them",
        advice="report it with an export; trust the first end",
        check=log.terminal_final,
    ),
    Rule(
        id="reason",
        meaning="every transition gives its reason in words",
        advice="report it with an export: a policy decided without saying why",
        check=log.reasons,
    ),
    Rule(
        id="cause",
        meaning="every transition points to what brought it about, in its own entry or an earlier one",
        advice="report it with an export",
        check=log.causes,
    ),
    Rule(
        id="clock",
        meaning="the run's clock never goes back",
        advice="durations around that entry mean nothing; report it with an export",
        check=log.clock,
    ),
    Rule(
        id="attempts",
        meaning="attempts are numbered 1, 2, 3, …",
        advice="report it with an export",
        check=log.attempts,
    ),
    Rule(
        id="epochs",
        meaning="epochs are numbered 1, 2, 3, …: each controller that took the run over fenced the one before",
        advice="report it with an export: the controllers do not count alike",
        check=log.epochs,
    ),
    Rule(
        id="single-writer",
        meaning="each entry is by the controller and in the epoch that ControllerChanged named last",
        advice="two controllers wrote at once, or one wrote after it was fenced; report it with an export",
        check=log.single_writer,
    ),
    Rule(
        id="budgets",
        meaning="a failed attempt spends at most one unit of one budget, counted without a hole, within its limit",
        advice="the run was tried too often or too seldom; report it with an export",
        check=run.budgets,
    ),
    Rule(
        id="incarnations",
        meaning="each start of a source is given the next incarnation",
        advice="facts may have been counted twice or lost; report it with an export",
        check=run.incarnations,
    ),
    Rule(
        id="write-ahead",
        meaning="nothing happened before the entry that ordered it: no fact speaks of what no earlier entry had made",
        advice="an order left the controller before its entry stood, or the log lost entries: compare with the archive",
        check=walked("write-ahead"),
    ),
    Rule(
        id="stale-voices",
        meaning="facts of ended attempts and older incarnations change no decision; they only revise the first cause",
        advice="a decision rests on what was over already; report it with an export",
        check=walked("stale-voices"),
    ),
    Rule(
        id="first-cause",
        meaning="what counts as an attempt's first cause is the first, by kind and time, of what was known then",
        advice="the blame is on the wrong rank; look at the failures of that attempt, and report it with an export",
        check=walked("first-cause"),
    ),
    Rule(
        id="lineage",
        meaning="a checkpoint counts once, after its seal; ranks begin only from checkpoints that count",
        advice="do not resume from that checkpoint; verify its files against its manifest",
        check=run.lineage,
    ),
    Rule(
        id="retention",
        meaning="what is deleted was ordered after a commit, was not to be kept, and somebody said that it is gone",
        advice="look whether the checkpoints named are still there; report it with an export",
        check=run.retention,
    ),
    Rule(
        id="snapshots",
        meaning="every snapshot is the state that the entries up to it fold into",
        advice="the snapshot is ignored at take-over; delete it and report it with an export",
        check=walked("snapshots"),
    ),
    Rule(
        id="foldable",
        meaning="every entry folds into a state",
        advice="the state behind that entry is unknown to this version; try the version that wrote it",
        check=walked("foldable"),
    ),
)
"""All rules, in the order in which they are looked at and shown."""
