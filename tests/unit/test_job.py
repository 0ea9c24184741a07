"""A published job is taken exactly as specified, or refused with the path of the offender."""

from __future__ import annotations

import json

import msgspec
import pytest

from runfold.events.config import BackendConfig
from runfold.events.job import Job, check_job, decode_job, encode_job, job_digest, resolve_job
from runfold.events.limits import JOB_MAX_BYTES
from runfold.events.strict import Refused


def published(**fields: object) -> bytes:
    return json.dumps({"entrypoint": "module:train", **fields}).encode()


def torch(**options: object) -> dict[str, object]:
    return {"kind": "torch", "options": options}


def torchft(**options: object) -> dict[str, object]:
    return {"kind": "torchft", "options": options}


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (b"xx", "$", "not JSON"),
        (b"", "$", "not JSON"),
        (b"\xff\xfe", "$", "not JSON"),
        (b"[]", "$", "must be a table"),
        (b"{}", "$", "entrypoint"),
        (b"[" * 100_000, "$", ""),
        (published(colour="red"), "$.colour", "unknown field"),
        (published(scaling={"num_worker": 2}), "$.scaling.num_worker", "unknown field"),
        (published(scaling={"num_workers": 0}), "$.scaling.num_workers", "at least 1"),
        (published(scaling={"num_workers": -1}), "$.scaling.num_workers", "at least 0"),
        (published(scaling={"num_workers": 10**9}), "$.scaling.num_workers", "world_size_max"),
        (published(scaling={"num_workers": [4, 2]}), "$.scaling.num_workers", "at least 4"),
        (published(scaling={"num_workers": True}), "$.scaling.num_workers", "not true or false"),
        (published(scaling={"placement_strategy": "TIGHT"}), "$.scaling.placement_strategy", "TIGHT"),
        (published(scaling={"resources_per_worker": {"GPU": 1}}), "$.scaling.resources_per_worker", "use_gpu"),
        (published(failure={"max_failures": -2}), "$.failure.max_failures", "at least -1"),
        (published(checkpoint={"num_to_keep": 0}), "$.checkpoint.num_to_keep", "at least 1"),
        (published(timeouts={"beat_every_s": -1}), "$.timeouts.beat_every_s", "finite number of seconds"),
        (published(backend={"kind": "smoke-signals"}), "$.backend.kind", "smoke-signals"),
        (published(backend={"options": {"timeout_s": 9}}), "$.backend.options.timeout_s", "say which backend.kind"),
        (
            published(backend=torch(backnd="gloo")),
            "$.backend.options.backnd",
            "known are backend, init_method, shutdown_timeout_s, timeout_s",
        ),
        (published(backend=torch(lighthouse="http://a:1")), "$.backend.options.lighthouse", "unknown field"),
        (published(backend=torch(timeout_s="9")), "$.backend.options.timeout_s", "must be a number"),
        (published(backend=torch(timeout_s=True)), "$.backend.options.timeout_s", "not true or false"),
        (published(backend=torch(timeout_s=0)), "$.backend.options.timeout_s", "more than 0 seconds"),
        (published(backend=torch(shutdown_timeout_s=-1)), "$.backend.options.shutdown_timeout_s", "0 seconds or more"),
        (published(backend=torch(backend=1)), "$.backend.options.backend", "must be text"),
        (published(backend=torch(init_method="file")), "$.backend.options.init_method", "env, tcp"),
        (published(backend=torchft(lighthouse=1)), "$.backend.options.lighthouse", "must be text"),
        (published(backend=torchft(lighthouse_kwargs=[])), "$.backend.options.lighthouse_kwargs", "must be a table"),
        (published(id="Not An Id"), "$.id", "no run id"),
        (published(id="job-7"), "$.id", "cannot be asked for"),
        (published(kind="resize_run"), "$.kind", "resize_run"),
        (published(v=2), "$.v", "2"),
        (published(pool="a.b"), "$.pool", "no pool name"),
        (published(env={"A=B": "x"}), "$.env", "environment variable"),
        (published(env={"A": "x\0y"}), "$.env.A", "NUL"),
        (published(working_dir="/a\0b"), "$.working_dir", "NUL"),
        (published(storage_path="\0"), "$.storage_path", "NUL"),
        (published(config={"x": "y" * JOB_MAX_BYTES}), "$", "job_max_bytes"),
    ],
)
def test_what_is_no_job_is_refused_with_the_path_of_the_offender(data: bytes, path: str, words: str) -> None:
    with pytest.raises(Refused) as refusal:
        decode_job(data)
    assert refusal.value.path == path
    assert words in refusal.value.reason


@pytest.mark.parametrize(
    "backend",
    [
        torch(backend="gloo", init_method="tcp", timeout_s=9, shutdown_timeout_s=0),
        torch(backend=None),
        torchft(timeout_s=0.5, lighthouse="http://a:1", lighthouse_kwargs={"min_replicas": 2}),
        {"kind": "mine.py:Mine", "options": {"anything": [1, {"else": None}]}},
    ],
)
def test_what_a_backend_can_be_told_is_taken_and_one_of_your_own_takes_anything(backend: dict[str, object]) -> None:
    assert decode_job(published(backend=backend)).backend.options == backend["options"]


def test_an_option_that_is_not_there_is_refused_also_when_the_job_is_made_in_python() -> None:
    with pytest.raises(Refused, match=r"\$\.backend\.options\.backnd: unknown field"):
        check_job(Job(entrypoint="a:b", backend=BackendConfig(kind="torch", options={"backnd": "gloo"})))


@pytest.mark.parametrize("field", [{"name": "\udcff"}, {"config": {"a": "\udcff"}}, {"env": {"A": "\udcff"}}])
def test_a_job_made_in_python_must_be_text(field: dict[str, object]) -> None:
    with pytest.raises(Refused, match="half a character"):
        check_job(msgspec.structs.replace(Job(entrypoint="module:train"), **field))


@pytest.mark.parametrize(
    "entrypoint", ["", "module", "module:", ":f", "a b:f", "dir/file.txt:f", "blob:sha256:12", "m:1f"]
)
def test_an_entry_point_must_name_a_function(entrypoint: str) -> None:
    with pytest.raises(Refused, match="entrypoint"):
        decode_job(published(entrypoint=entrypoint))


@pytest.mark.parametrize(
    "entrypoint", ["a.b:f", "x.py:f", "/abs/my file.py:Class.f", "blob:sha256:" + "0a" * 32, "examples/digits.py:train"]
)
def test_the_three_forms_of_entry_point_are_taken(entrypoint: str) -> None:
    assert decode_job(published(entrypoint=entrypoint)).entrypoint == entrypoint


def test_only_the_entry_point_is_required_and_the_rest_has_the_documented_defaults() -> None:
    job = decode_job(published())
    assert (job.scaling.num_workers, job.failure.max_failures, job.failure.controller_failure_limit) == (1, 0, -1)
    assert (job.timeouts.beat_every_s, job.timeouts.lost_after_s, job.timeouts.shutdown_deadline_s) == (1.0, 60.0, 30.0)


def test_resolving_fills_in_id_and_name_and_changes_nothing_the_second_time() -> None:
    once = resolve_job(decode_job(published()), 12)
    assert (once.id, once.name) == ("job-12", "train")
    assert resolve_job(once, 99) == once


def test_the_digest_tells_jobs_apart_by_content_not_by_order_of_keys() -> None:
    one = decode_job(b'{"entrypoint": "a:b", "env": {"x": "1", "y": "2"}}')
    same = decode_job(b'{"env": {"y": "2", "x": "1"}, "entrypoint": "a:b"}')
    assert job_digest(one) == job_digest(same)
    assert job_digest(one) != job_digest(decode_job(b'{"entrypoint": "a:b", "env": {"x": "1", "y": "3"}}'))
    assert decode_job(encode_job(one)) == one


def test_a_job_made_in_python_is_held_to_the_same_rules() -> None:
    check_job(Job(entrypoint="a:b"))
    with pytest.raises(Refused, match="job_max_bytes"):
        check_job(Job(entrypoint="a:b", config={"x": "y" * JOB_MAX_BYTES}))
