"""Headers are read as nats-py reads them, only faster."""

from __future__ import annotations

import pytest

from runfold.events.nats.library import Client


def read(raw: bytes) -> dict[str, str]:
    return Client._parse_header_lines(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"Nats-Sequence: 17\r\nNats-Subject: runfold.run.a.log.1\r\n\r\n",
        b"Nats-Time-Stamp: 2026-11-30T05:48:28.123456789Z\r\n",
        b"Name:value\r\nOther:\tvalue \r\n",
        b"no colon\r\nwith blank : x\r\nwith in side: x\r\nwith\ttab: x\r\n",
        "Überschrift: x\r\nName: Übung\r\n".encode(),
        b"Name: \xff\xfe\r\n",
        b"Empty:\r\nTwice: a:b:c\r\nTwice: d\r\n",
    ],
)
def test_every_form_reads_as_nats_py_reads_it(raw: bytes) -> None:
    assert read(raw) == Client.__mro__[1]._parse_header_lines(raw)  # type: ignore[attr-defined]  # its own way to read


def test_a_line_without_a_name_is_no_header() -> None:
    assert read(b": nobody\r\n") == {}
