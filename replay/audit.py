"""Auditing a history against named rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from runfold.events.base import Document
from runfold.replay.finding import Evidence, Finding, Rule
from runfold.replay.history import History
from runfold.replay.rules import RULES
from runfold.replay.walk import walk

FINDINGS_OF_A_RULE_MAX_COUNT: Final = 100


class RuleResult(Document, frozen=True, kw_only=True):
    """A rule that was looked at: what it means, what to do, and how often it is broken."""

    id: str
    meaning: str
    advice: str
    broken: int


class AuditReport(Document, frozen=True, kw_only=True):
    """What was found; at most `FINDINGS_OF_A_RULE_MAX_COUNT` findings of a rule stand here, all are counted.

    `dropped` counts the voices that changed nothing, which is as it should be: stale, foreign, malformed.
    """

    run: str
    target: str
    entries: int
    head: str
    rules: tuple[RuleResult, ...]
    findings: tuple[Finding, ...]
    dropped: dict[str, int] = {}

    @property
    def clean(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings


def audit(history: History, rules: Sequence[Rule] = RULES) -> AuditReport:
    """Return what a history breaks of the rules. Never raises: what cannot be read is a finding."""
    found, state = walk(history)
    evidence = Evidence(history, found)
    results: list[RuleResult] = []
    beside = bool(history.links) and not history.loses_entries
    findings: list[Finding] = []
    for rule in rules:
        broken = 0
        for broken, finding in enumerate(rule.check(evidence), start=1):
            if broken <= FINDINGS_OF_A_RULE_MAX_COUNT:
                findings.append(finding)
        advice = rule.advice_beside if beside and rule.advice_beside else rule.advice
        results.append(RuleResult(id=rule.id, meaning=rule.meaning, advice=advice, broken=broken))
    return AuditReport(
        run=history.run,
        target=history.target,
        entries=len(history.links),
        head=history.links[-1].hash if history.links else "",
        rules=tuple(results),
        findings=tuple(findings),
        dropped={} if state is None else msgspec.structs.asdict(state.dropped),
    )
