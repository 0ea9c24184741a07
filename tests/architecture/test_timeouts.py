"""Each timeout has a name, a default and a line in the documents; settings that are no timeouts are none there."""

import re

from runfold.events.config import Timeouts
from support.sources import ROOT

ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<default>[\d.]+|none) \|", re.MULTILINE)
NO_TIMEOUTS = {"beat_every_s", "report_flush_s", "coalesce_s"}
"""How often something is said, and how long notices are gathered: nothing is over when they are."""


def test_the_documents_list_every_timeout_with_its_default() -> None:
    text = (ROOT / "docs" / "liveness.md").read_text(encoding="utf-8")
    told = {row["name"]: None if row["default"] == "none" else float(row["default"]) for row in ROW.finditer(text)}
    defaults = {name: getattr(Timeouts(), name) for name in Timeouts.__struct_fields__ if name not in NO_TIMEOUTS}
    assert told == defaults
