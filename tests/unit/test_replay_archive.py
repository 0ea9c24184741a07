"""Archives: what is written is what is read, again and again; what was changed or lost is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import zstandard

from runfold.events.base import Cause
from runfold.events.entry import decode_entry
from runfold.events.limits import OUTPUT_TAIL_MAX_BYTES
from runfold.events.transitions import LogRestored
from runfold.replay import archive as archive_module
from runfold.replay.archive import archive_path, list_archives, write_archive
from runfold.replay.audit import audit
from runfold.replay.closing import named_blobs
from runfold.replay.errors import ArchiveRefused, NotFound, ReplayError
from runfold.replay.goodput import goodput
from runfold.replay.history import History
from runfold.replay.segments import grown_so_far
from runfold.replay.source import load
from runfold.replay.store import Store, open_store
from runfold.replay.unarchive import RankOutput, archived_beside, read_blob, read_last, read_output
from runfold.replay.verify import verify
from support.histories import Voice, beginning, chained, decided, ending, failing_run, finished_run, history, reports

TEXT = b"the whole of a long traceback"
DIGEST = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an archive goes: this machine, or any other file system that fsspec knows."""
    return str(tmp_path / "archive" / "digits") if request.param == "directory" else f"memory://{uuid4().hex}/digits"


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few entries."""
    monkeypatch.setattr(archive_module, "ARCHIVE_SEGMENT_MAX_BYTES", 4000)


def with_blob() -> History:
    """A run whose rank 0 returned a value too large for the log."""
    pool, node = Voice("pool-local"), Voice("local")
    steps = beginning(pool, node) + reports(node, 1.0, range(2)) + ending(pool, node, 3.0, 1, 2)
    t, (first, *others) = steps[7]
    steps[7] = (t, [msgspec.structs.replace(first, blob=f"sha256:{DIGEST}"), *others])
    return history(decided(steps))


def files(store: Store, folder: str = "") -> Iterator[str]:
    """Every file of an archive."""
    for name in store.names(folder):
        path = f"{folder}/{name}".lstrip("/")
        below = list(files(store, path))
        yield from below or [path]


def test_what_was_archived_is_what_is_read(place: str, small_segments: None) -> None:
    written = history(failing_run())
    last = write_archive(written, place)
    read = load(place, deep=True)
    assert [link.data for link in read.links] == [link.data for link in written.links]
    assert (read.damages, read.strays) == ((), ())
    assert (read.run, read.head) == (written.run, written.head)
    assert [known.head for known in read.heads] == [written.head]
    assert last is not None
    assert (last.outcome, last.attempts, last.name, last.entries) == ("finished", 2, "digits", len(written.links))
    assert last.segments > 2
    assert read.links[-1].where.file.startswith("segments/0000000000")


def test_archiving_again_writes_nothing(place: str, small_segments: None) -> None:
    store = open_store(place)
    first = write_archive(history(failing_run()), place)
    before = {name: store.read(name) for name in files(store)}
    assert write_archive(history(failing_run()), place) == first
    assert {name: store.read(name) for name in files(store)} == before


@pytest.mark.parametrize("kept", range(6))
def test_a_write_cut_short_is_continued(kept: int, tmp_path: Path, small_segments: None) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    write_archive(history(failing_run()), whole)
    source, target = open_store(whole), open_store(part)
    order = sorted(files(source), key=lambda name: (name == "last.json", name.replace(".jsonl.zst", ".a")))
    for name in order[:kept]:
        target.write(name, source.read(name))
    write_archive(history(failing_run()), part)
    read = load(part, deep=True)
    assert (len(read.links), read.damages) == (len(failing_run()), ())


def test_a_run_that_goes_on_is_archived_without_a_last_word(place: str) -> None:
    lines = finished_run()
    assert write_archive(history(lines[:6]), place) is None
    (damage,) = load(place).damages
    assert (damage.flaw, len(load(place).links)) == ("truncated", 6)
    assert write_archive(history(lines), place) is not None
    assert (load(place).damages, len(load(place).links)) == ((), len(lines))


def test_a_log_that_went_on_after_its_end_is_archived_anew(place: str) -> None:
    lines = finished_run()
    write_archive(history(lines), place)
    steps = [(entry.t, entry.inputs, entry.transitions) for entry in map(decode_entry, lines)]
    restored = LogRestored(cause=Cause(input=0), reason="from an archive", generation=2, source="memory://a")
    longer = history(chained([*steps, (steps[-1][0], (), (restored,))]))
    last = write_archive(longer, place)
    read = load(place, deep=True)
    assert (len(read.links), read.damages) == (len(lines) + 1, ())
    assert last is not None
    assert (last.head, last.outcome) == (longer.head, "finished")


def test_another_log_does_not_overwrite_an_archive(place: str) -> None:
    write_archive(history(failing_run()), place)
    with pytest.raises(ArchiveRefused, match="another log"):
        write_archive(history(finished_run()), place)
    assert len(load(place).links) == len(failing_run())


def test_a_damaged_log_is_not_archived(place: str) -> None:
    lines = failing_run()
    with pytest.raises(ArchiveRefused, match="entry 4 is missing"):
        write_archive(history([*lines[:4], *lines[5:]]), place)
    with pytest.raises(NotFound):
        load(place)


def test_blobs_that_entries_name_go_with_it(place: str) -> None:
    run = with_blob()
    assert named_blobs(run) == (DIGEST,)
    last = write_archive(run, place, blobs={DIGEST: TEXT})
    assert last is not None
    assert last.blobs[0].size_bytes == len(TEXT)
    assert read_blob(open_store(place), DIGEST) == TEXT
    assert load(place, deep=True).damages == ()


def test_a_blob_that_could_not_be_had_is_said_so(place: str) -> None:
    write_archive(with_blob(), place, blobs={DIGEST: b"something else"})
    (damage,) = load(place, deep=True).damages
    assert (damage.flaw, damage.where and damage.where.file) == ("blob", f"blobs/{DIGEST}")
    with pytest.raises(NotFound):
        read_blob(open_store(place), DIGEST)


def test_the_last_output_of_each_rank_goes_with_it(place: str) -> None:
    many = tuple(json.dumps({"number": k, "text": "x" * 65_000}).encode() for k in range(20))
    outputs = [
        RankOutput(attempt=1, rank=0, batches=(b'{"number": 1}', b'{"number": 2}')),
        RankOutput(attempt=1, rank=1, batches=many),
        RankOutput(attempt=2, rank=0, batches=()),
    ]
    last = write_archive(history(failing_run()), place, outputs=outputs)
    store = open_store(place)
    assert read_output(store, 1, 0) == (b'{"number": 1}', b'{"number": 2}')
    assert read_output(store, 1, 1) == many[4:]
    assert sum(len(batch) + 1 for batch in many[4:]) <= OUTPUT_TAIL_MAX_BYTES
    assert read_output(store, 2, 0) == ()
    assert last is not None
    assert [(output.rank, output.batches, output.left_out) for output in last.outputs] == [(0, 2, 0), (1, 16, 4)]
    assert load(place, deep=True).damages == ()


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def damaged_archive(place: Path, hurt: Callable[[bytes], bytes | None], name: str) -> History:
    """An archive of four segments, a blob and output, one file of it changed or gone."""
    outputs = [RankOutput(attempt=1, rank=0, batches=(b"{}",))]
    write_archive(with_blob(), place, blobs={DIGEST: TEXT}, outputs=outputs)
    path = place / next(file for file in files(open_store(place)) if name in file)
    changed = hurt(path.read_bytes())
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    return load(place, deep=True)


@pytest.mark.parametrize("hurt", [flipped, lambda data: data[:-7], lambda data: None, lambda data: b""])
def test_any_file_changed_cut_emptied_or_lost_is_found(
    hurt: Callable[[bytes], bytes | None], tmp_path: Path, small_segments: None
) -> None:
    output = RankOutput(attempt=1, rank=0, batches=(b"{}",))
    write_archive(with_blob(), tmp_path / "whole", blobs={DIGEST: TEXT}, outputs=[output])
    names = list(files(open_store(tmp_path / "whole")))
    assert len(names) > 6
    for k, name in enumerate(names):
        read = damaged_archive(tmp_path / str(k), hurt, name)
        assert read.damages, name


@pytest.mark.parametrize(
    ("pattern", "flaw", "is_whole"),
    [
        ("segments/*.json", "manifest", True),
        ("segments/*.jsonl.zst", "segment", False),
        ("last.json", "manifest", True),
        ("story.json", "story", True),
        (f"blobs/{DIGEST}", "blob", True),
        ("output/1-0.jsonl.zst", "output", True),
    ],
)
def test_a_directory_in_place_of_any_part_is_found_and_the_others_are_read(
    pattern: str, flaw: str, is_whole: bool, tmp_path: Path, small_segments: None
) -> None:
    output = RankOutput(attempt=1, rank=0, batches=(b"{}",))
    write_archive(with_blob(), tmp_path, blobs={DIGEST: TEXT}, outputs=[output])
    path = max(tmp_path.glob(pattern))
    name = str(path.relative_to(tmp_path))
    path.unlink()
    path.mkdir()
    read = load(tmp_path, deep=True)
    assert [(one.flaw, one.where.file) for one in read.damages if one.where and "a directory is in" in one.what] == [
        (flaw, name)
    ]
    assert (len(read.links) == len(with_blob().links)) is is_whole
    assert name in str(audit(read).findings)
    assert verify(read).checked == len(read.links) > 0
    assert goodput(read).until_t == read.links[-1].entry.t
    with suppress(ReplayError):  # what of it cannot be had is told as that
        archived_beside(read)


def test_an_archive_whose_newest_manifest_is_a_directory_is_not_continued(tmp_path: Path, small_segments: None) -> None:
    write_archive(history(failing_run()[:6]), tmp_path)
    newest = max((tmp_path / "segments").glob("*.json"))
    newest.unlink()
    newest.mkdir()
    with pytest.raises(ArchiveRefused, match=r"newest manifest at .* is damaged"):
        grown_so_far(open_store(tmp_path), history(failing_run()).run)


def test_a_damaged_segment_names_the_entry_and_leaves_what_came_before(tmp_path: Path, small_segments: None) -> None:
    read = damaged_archive(tmp_path, lambda data: None, "segments/000000000000.jsonl.zst")
    assert [(damage.flaw, damage.n) for damage in read.damages][:2] == [("gap", 0), ("segment", 0)]


def test_a_segment_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:

    bomb = zstandard.ZstdCompressor().compress(b"\0" * 64 * 1024 * 1024)
    read = damaged_archive(tmp_path, lambda data: bomb, "segments/000000000000.jsonl.zst")
    assert any("more than the" in damage.what for damage in read.damages)


def test_closed_archives_are_listed_the_newest_first(tmp_path: Path) -> None:
    write_archive(history(failing_run()), archive_path(tmp_path, "digits-7k2"))
    write_archive(history(finished_run(40)), archive_path(tmp_path, "digits-40"))
    (tmp_path / "archive" / "broken").mkdir()
    assert [(last.entries, last.outcome) for last in list_archives(tmp_path)] == [
        (len(finished_run(40)), "finished"),
        (len(failing_run()), "finished"),
    ]
    assert read_last(open_store(tmp_path / "archive" / "broken")) is None
    assert list_archives(tmp_path / "nowhere") == ()


def test_a_run_is_found_in_the_data_directory_and_nothing_outside_it(tmp_path: Path) -> None:
    write_archive(history(failing_run()), archive_path(tmp_path, "digits-7k2"))
    assert load("digits-7k2", data_dir=tmp_path).run == "digits-7k2"
    with pytest.raises(NotFound, match="looked at"):
        load("digits-8", data_dir=tmp_path)
    with pytest.raises(NotFound):
        archive_path(tmp_path, "../elsewhere")
