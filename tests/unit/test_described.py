"""`runfold schema job` says of every field what it means."""

from __future__ import annotations

import json

import msgspec
import pytest

from runfold.cli import main
from runfold.cli.described import FIELDS
from runfold.events import config
from runfold.events.job import Job

CLASSES: dict[str, type[msgspec.Struct]] = {
    "Job": Job,
    **{
        name: kind
        for name, kind in vars(config).items()
        if isinstance(kind, type) and issubclass(kind, config.Config) and kind is not config.Config
    },
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_described_and_nothing_else(name: str) -> None:
    wanted = set(CLASSES[name].__struct_fields__) - {"v", "kind"} | (
        {"kind"} if "kind" in CLASSES[name].__struct_fields__ and name != "Job" else set()
    )
    assert set(FIELDS[name]) == wanted


@pytest.mark.parametrize("name", CLASSES)
def test_seconds_and_null_are_told(name: str) -> None:
    for field in msgspec.structs.fields(CLASSES[name]):
        text = FIELDS[name].get(field.encode_name, "")
        if field.encode_name.endswith("_s"):
            assert "econds" in text or "The same" in text, field.name
        if field.default is None and field.encode_name != "requested_by":
            assert "null" in text, field.name


def test_the_schema_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "job"]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    assert "null: for ever" in definitions["Timeouts"]["properties"]["collective_timeout_s"]["description"]
