"""The chain as found in a row of messages: what follows is believed, what does not is named."""

from __future__ import annotations

import pytest

from runfold.replay.errors import CannotRead
from support.histories import failing_run, finished_run, history


def test_entries_in_order_are_all_believed() -> None:
    lines = finished_run()
    read = history(lines)
    assert [link.entry.n for link in read.links] == list(range(len(lines)))
    assert [link.data for link in read.links] == lines
    assert (read.strays, read.damages) == ((), ())
    assert read.head.n == len(lines) - 1
    assert read.links[1].entry.prev == read.links[0].hash


def test_a_stray_is_skipped_and_remembered() -> None:
    lines = finished_run()
    read = history([*lines[:3], b"hello", lines[1], *lines[3:], b"{}"])
    assert len(read.links) == len(lines)
    assert read.damages == ()
    assert [(stray.where.sequence, stray.n) for stray in read.strays] == [(4, None), (5, 1), (len(lines) + 3, None)]
    assert "stands already" in read.strays[1].reason


def test_an_entry_of_another_run_is_a_stray() -> None:
    lines = finished_run()
    foreign = lines[3].replace(b"digits-7k2", b"digits-xxx", 1)
    read = history([*lines[:3], foreign, *lines[3:]])
    assert len(read.links) == len(lines)
    assert "'digits-xxx'" in read.strays[0].reason


def test_a_missing_entry_is_a_gap_and_nothing_behind_it_is_believed() -> None:
    lines = finished_run()
    read = history([*lines[:4], *lines[5:]])
    assert len(read.links) == 4
    (damage,) = read.damages
    assert (damage.flaw, damage.n) == ("gap", 4)
    assert damage.where is not None
    assert damage.where.sequence == 5
    assert f"{len(lines) - 5} later entries" in damage.what


def test_a_changed_entry_is_named_with_the_one_that_shows_it() -> None:
    lines = finished_run()
    changed = lines[5].replace(b'"index":0', b'"index":7', 1)
    assert changed != lines[5]
    read = history([*lines[:5], changed, *lines[6:]])
    (damage,) = read.damages
    assert (damage.flaw, damage.n) == ("break", 6)
    assert "entry 6 does not follow entry 5" in damage.what


def test_an_unreadable_entry_is_named_with_its_place() -> None:
    lines = finished_run()
    read = history([*lines[:5], lines[5][:-9], *lines[6:]])
    (damage,) = read.damages
    assert (damage.flaw, damage.n) == ("break", 5)
    assert "entry 5 cannot be read" in damage.what
    assert damage.where is not None
    assert damage.where.sequence == 6


def test_swapped_entries_are_found() -> None:
    lines = finished_run()
    lines[6], lines[7] = lines[7], lines[6]
    (damage,) = history(lines).damages
    assert (damage.flaw, damage.n) == ("gap", 7)
    assert "at message 7 of the log: out of order" in damage.what


def test_a_rewritten_entry_with_a_new_chain_of_its_own_is_another_head() -> None:
    assert history(failing_run()[:6]).head != history(failing_run()[:7]).head


def test_nothing_readable_has_no_head() -> None:
    read = history([b"junk"])
    assert read.links == ()
    with pytest.raises(CannotRead, match="no entry"):
        _ = read.head
