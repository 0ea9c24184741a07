"""Making a job of what was typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runfold import jobs
from runfold.errors import UsageError
from runfold.events.job import RUN_ID
from runfold.ids import new_run_id
from runfold.jobs import check_file, job_from


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("examples/digits.py:train", "digits"),
        ("/abs/My File.py:train", "My File"),
        ("examples.digits:train", "digits"),
        ("digits:train", "digits"),
    ],
)
def test_a_run_is_named_after_where_its_code_stands(target: str, name: str) -> None:
    job = job_from(target)
    assert job.name == name
    assert RUN_ID.fullmatch(str(job.id))


@pytest.mark.parametrize("name", ["digits", "My Run!", "", "-", "ä", "x" * 200, "--a--", "job"])
def test_every_name_makes_a_legal_id_of_its_own(name: str) -> None:
    first, second = new_run_id(name), new_run_id(name)
    assert first != second
    assert RUN_ID.fullmatch(first)
    assert not re.fullmatch(r"job-[0-9]+", first)


def test_settings_are_written_by_their_path_and_read_as_json_or_text() -> None:
    settings = ["failure.max_failures=3", "config.lr=0.1", "config.name=big model", 'config.list=[1,"a"]', "env.A=1=2"]
    job = job_from("a.py:f", workers=2, settings=settings)
    assert job.failure.max_failures == 3
    assert job.config == {"lr": 0.1, "name": "big model", "list": [1, "a"]}
    assert job.env == {"A": "1=2"}
    assert job.scaling.num_workers == 2


def test_what_was_set_last_counts_and_options_weigh_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('entrypoint = "a.py:f"\nid = "mine"\n[scaling]\nnum_workers = 5\n', encoding="utf-8")
    assert job_from(str(file)).scaling.num_workers == 5
    assert job_from(str(file)).id == "mine"
    assert job_from(str(file), workers=2, settings=["scaling.num_workers=3"]).scaling.num_workers == 3


def test_values_beyond_json_are_packed() -> None:
    assert job_from("a.py:f", settings=[f"config.big={2**60}"]).config == {"big": {"int": str(2**60)}}


def test_the_working_directory_is_only_a_default() -> None:
    assert job_from("a.py:f", working_dir="/here").working_dir == "/here"
    assert job_from("a.py:f", working_dir="/here", settings=["working_dir=."]).working_dir == "."
    assert job_from("a.py:f").working_dir is None


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("nothing", [], "$.entrypoint"),
        ("a.py:f", ["lr"], "--set lr"),
        ("a.py:f", ["=1"], "--set =1"),
        ("a.py:f", ["name.first=x", "name=y", "name.first=z"], "name"),
        ("a.py:f", ["surprise=1"], "$.surprise"),
        ("a.py:f", ["failure.max_failures=x"], "$.failure.max_failures"),
        ("a.py:f", ["id=UPPER"], "$.id"),
        ("a.py:f", ["pool=a b"], "$.pool"),
        ("missing.json", [], "missing.json"),
    ],
)
def test_what_is_wrong_is_named(target: str, settings: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        job_from(target, settings=settings)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["not toml", "[1]", "a = "])
def test_a_file_that_is_no_job_is_named(tmp_path: Path, text: str) -> None:
    for suffix in (".toml", ".json"):
        file = tmp_path / f"job{suffix}"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError):
            job_from(str(file))


def test_what_is_text_is_taken_as_it_stands() -> None:
    job = job_from("a.py:f", settings=["env.OMP_NUM_THREADS=4", "labels.trial=1", "env.EMPTY="])
    assert job.env == {"OMP_NUM_THREADS": "4", "EMPTY": ""}
    assert job.labels == {"trial": "1"}


def test_what_is_no_text_in_a_file_is_named_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('entrypoint = "a.py:f"\n[env]\nTHREADS = 4\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"\$\.env\.THREADS: must be text, not 4"):
        job_from(str(file))


def test_a_job_files_working_directory_is_seen_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('entrypoint = "a.py:f"\n', encoding="utf-8")
    assert job_from(str(file), working_dir=str(tmp_path)).working_dir == str(tmp_path)
    file.write_text('entrypoint = "a.py:f"\nworking_dir = "code"\n', encoding="utf-8")
    assert job_from(str(file), working_dir=str(tmp_path)).working_dir == str(tmp_path / "code")
    assert job_from(str(file)).working_dir == "code"


@pytest.mark.parametrize(
    ("target", "name", "settings", "said"),
    [
        ("job.yaml", None, [], "job files are .toml or .json"),
        ("a.py:f", "", [], "--name: is empty"),
        ("a.py:f", None, ["config.=3"], "a part of the path is empty"),
        ("a.py:f", None, ["env.=3"], "a part of the path is empty"),
    ],
)
def test_what_cannot_be_meant_is_said(target: str, name: str | None, settings: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job_from(target, name=name, settings=settings)


def test_a_file_that_is_not_there_is_told_before_anything_is_published(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    check_file(job_from("a.py:f"), tmp_path)
    check_file(job_from("some.module:f"), tmp_path)
    check_file(job_from("a.py:f", working_dir=str(tmp_path)), Path("/"))
    with pytest.raises(UsageError, match=r"there is no file .*nope\.py\nNothing was published"):
        check_file(job_from("nope.py:f"), tmp_path)


def test_workers_from_to_ask_for_an_elastic_run() -> None:
    assert job_from("a.py:f", workers="4").scaling.num_workers == 4
    assert job_from("a.py:f", workers="1-4").scaling.num_workers == (1, 4)
    assert job_from("a.py:f", workers="4-4").scaling.num_workers == (4, 4)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ("1,4", "must be a whole number, or MIN-MAX"),
        ("two", "must be a whole number, or MIN-MAX"),
        ("1-", "must be a whole number, or MIN-MAX"),
        ("", "must be a whole number, or MIN-MAX"),
        ("9" * jobs.WORKERS_DIGITS_MAX, "world_size_max"),
        ("9" * (jobs.WORKERS_DIGITS_MAX + 1), "must be a whole number, or MIN-MAX"),
        ("9" * 5000, "must be a whole number, or MIN-MAX"),
        ("4-1", "the fewest come first, as in 1-4"),
        ("0-4", "must be 1 or more, not 0"),
        ("1-1000000000", "world_size_max"),
    ],
)
def test_workers_that_are_no_number_and_no_range_are_refused(workers: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        job_from("a.py:f", workers=workers)


@pytest.mark.parametrize("workers", [0, -1])
def test_who_asks_for_no_workers_is_told_what_to_do(workers: int) -> None:
    with pytest.raises(UsageError, match=f"--workers: must be 1 or more, not {workers} .*num_workers=0"):
        job_from("a.py:f", workers=workers)
    with pytest.raises(UsageError, match="num_workers: must be at least"):
        job_from("a.py:f", settings=[f"scaling.num_workers={workers}"])
