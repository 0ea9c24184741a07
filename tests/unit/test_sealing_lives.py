"""Lives of a rank within one attempt: one that is over, and does not know it, takes no part in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runfold.workers.errors import StorageError
from runfold.workers.layout import INNER, MANIFEST
from runfold.workers.sealing import seal
from support.sealing import NAME, local, manifest, order, storage, two_ranks, uploads

if TYPE_CHECKING:
    from pathlib import Path

    from runfold.workers.storage import Storage

__all__ = ["storage"]


def test_what_a_life_that_is_over_uploads_late_takes_no_part(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    uploads(storage, 1, life=2).copy(local(tmp_path / "b2", b="222", shared="same"), NAME, 0, {}, named=False)
    uploads(storage, 1).copy(local(tmp_path / "b3", late="late", shared="same"), NAME, 0, {}, named=False)
    seal(storage, "r1", order(0, 1))
    assert [(one.path, one.rank, one.size) for one in manifest(storage).files] == [
        ("a", 0, 1),
        ("b", 1, 3),
        ("shared", 0, 4),
    ]
    assert set(storage.files.find(storage.path(NAME))) == {"a", "b", "shared", f"{INNER}/{MANIFEST}"}


def test_what_a_life_that_is_over_has_written_over_is_not_sealed(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0, life=2).copy(local(tmp_path / "a2", a="2"), NAME, 0, {}, named=False)
    uploads(storage, 0).copy(local(tmp_path / "a1", a="1"), NAME, 0, {}, named=False)
    with pytest.raises(StorageError, match=r"a of rank 0 \(life 2\) was written over by its life 1"):
        seal(storage, "r1", order(0))
    assert not storage.files.exists(storage.inner(NAME, MANIFEST))
    uploads(storage, 0, life=2).copy(local(tmp_path / "a2", a="2"), NAME, 0, {}, named=False)
    seal(storage, "r1", order(0))


def test_a_rank_that_went_on_in_its_next_life_has_what_it_had_uploaded_before(storage: Storage, tmp_path: Path) -> None:
    two_ranks(storage, tmp_path)
    uploads(storage, 1, life=2).copy(local(tmp_path / "next", n="n"), "checkpoint_000001_1", 1, {}, named=False)
    seal(storage, "r1", order(0, 1))
    assert [one.path for one in manifest(storage).files] == ["a", "b", "shared"]


def test_the_lives_of_another_attempt_are_none_of_this(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0, life=3).copy(local(tmp_path / "old", a="old"), "mine", 0, {})
    uploads(storage, 0, attempt=2).copy(local(tmp_path / "new", a="new!"), "mine", 0, {})
    seal(storage, "r1", order(0, name="mine", attempt=2, world_size=1))
    assert [(one.path, one.size) for one in manifest(storage, "mine").files] == [("a", 4)]
    assert [name for name in storage.files.find(storage.path("mine")) if "part-" in name] == []


def test_a_life_that_is_over_is_told_so_where_the_next_has_begun(storage: Storage, tmp_path: Path) -> None:
    uploads(storage, 0, life=2).copy(local(tmp_path / "new", a="new"), "mine", 0, {})
    with pytest.raises(StorageError, match="touches nothing of it"):
        uploads(storage, 0).copy(local(tmp_path / "old", a="old"), "mine", 0, {})
