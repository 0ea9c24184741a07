"""Making a job of what was typed or called: a file, a reference, a function, and settings by their path."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from runfold.config import read_settings
from runfold.errors import UsageError
from runfold.events.job import Job, decode_job
from runfold.events.strict import Refused
from runfold.events.values import Unencodable, pack, unpack
from runfold.ids import new_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runfold.events.base import Json

_FILES: Final = (".toml", ".json")
_NO_FILES: Final = (".yaml", ".yml")
WORKERS_DIGITS_MAX: Final = 18
"""Of each number of ranks: more than any group needs, and so few that no text is too long to be read as a number."""
_DIGITS: Final = rf"[0-9]{{1,{WORKERS_DIGITS_MAX}}}"
_WORKERS: Final = re.compile(rf"(?P<low>-?{_DIGITS})(?:-(?P<high>{_DIGITS}))?")
_CALLBACKS: Final = ("hooks=", "hooks.callbacks=")
"""Settings that name other callbacks: what the ones before were called for says nothing of them."""
_TEXTS: Final = ("env", "labels")
"""Fields that map names to text: what is typed for one of them is taken as it stands."""


def job_from(
    target: str,
    *,
    workers: int | str | None = None,
    settings: Iterable[str] = (),
    name: str | None = None,
    working_dir: str | None = None,
    requested_by: str = "",
) -> Job:
    """Return the job that a command line asks for; an id is made when none is given.

    `target` is a job file (TOML or JSON) or an entry point; `settings` are `path=value` with JSON values, a value that
    is no JSON being text. `workers` is how many ranks, or `MIN-MAX` for an elastic run. `working_dir` is where the code
    is looked for, unless the job file says where, seen from there. Raises `UsageError` naming the option or the path of
    the offender.
    """
    fields: dict[str, object] = {"entrypoint": target}
    if is_job_file(target):
        fields = _read_file(Path(target))
        if working_dir is not None and isinstance(own := fields.get("working_dir"), str):
            fields["working_dir"] = str(Path(working_dir) / own)
    if name == "":
        raise UsageError("--name: is empty\nNothing was published.")
    if workers is not None:
        _put(fields, "scaling.num_workers", _workers_of(str(workers)))
    for setting in settings:
        _set(fields, setting)
    if name is not None:
        fields["name"] = name
    if requested_by:
        fields.setdefault("requested_by", requested_by)
    if working_dir is not None:
        fields.setdefault("working_dir", working_dir)
    return _with_hooks(complete(fields))


def _with_hooks(job: Job) -> Job:
    """Return a job with what its callbacks are called for; their modules are the user's, and loaded here."""
    if not job.hooks.callbacks and not read_settings().callbacks:
        return job
    from runfold.hooks import with_hooks

    return with_hooks(job)


def _workers_of(text: str) -> int | list[int]:
    """Return how many ranks a command line asks for: a number, or the fewest and the most."""
    found = _WORKERS.fullmatch(text.strip())
    if found is None:
        how = "must be a whole number, or MIN-MAX for a run that takes what there is"
        raise UsageError(f"--workers: {how}, not {text!r}\nNothing was published.")
    low, high = int(found["low"]), found["high"]
    if low < 1:
        local = "to train in one process, call Trainer(…).fit() in Python with num_workers=0"
        raise UsageError(f"--workers: must be 1 or more, not {low} ({local})\nNothing was published.")
    if high is None:
        return low
    if int(high) < low:
        raise UsageError(f"--workers: the fewest come first, as in {high}-{low}, not {text!r}\nNothing was published.")
    return [low, int(high)]


def is_job_file(target: str) -> bool:
    """Say whether a target is a job file; raise `UsageError` for a file of a kind that is none."""
    if target.endswith(_NO_FILES):
        raise UsageError(f"{target}: job files are {' or '.join(_FILES)}\nNothing was published.")
    return target.endswith(_FILES)


def check_file(job: Job, base: Path | None = None) -> None:
    """Raise `UsageError` when a job's code is a file that is not there, as seen from `base` or from here."""
    source = job.entrypoint.rpartition(":")[0]
    if not source.endswith(".py"):
        return
    try:
        here = base or Path.cwd()
    except FileNotFoundError:
        return  # the directory is gone, which is told where the run would start
    path = here / (job.working_dir or ".") / source
    if not path.is_file():
        raise UsageError(f"entry point {job.entrypoint!r}: there is no file {path}\nNothing was published.")


def changed(job: Job, settings: Iterable[str]) -> Job:
    """Return a job with settings changed, as in `job_from`."""
    fields: dict[str, object] = {**msgspec.to_builtins(job), "config": unpack(dict(job.config))}
    settings = tuple(settings)
    other_callbacks = any(setting.startswith(_CALLBACKS) for setting in settings)
    if other_callbacks:
        fields["hooks"] = {}
    for setting in settings:
        _set(fields, setting)
    return _with_hooks(complete(fields)) if other_callbacks else complete(fields)


def complete(fields: Mapping[str, object]) -> Job:
    """Return the job of these fields with a name and an id; raise `UsageError` with the path of the offender."""
    filled = dict(fields)
    _check_texts(filled)
    named = filled.get("name") if "storage_name" not in filled else None
    filled["name"] = filled.get("name") or _name_of(str(filled.get("entrypoint", "")))
    filled["id"] = filled.get("id") or new_run_id(str(filled["name"]))
    # Only a name that somebody gave means the same directory again: what is derived would make strangers meet there.
    filled["storage_name"] = filled.get("storage_name") or named or filled["id"]
    try:
        filled["config"] = pack(filled.get("config", {}), "$.config")
        return decode_job(msgspec.json.encode(filled))
    except Refused as error:
        raise UsageError(f"this is no job: {error.path}: {error.reason}\nNothing was published.") from error
    except (Unencodable, TypeError) as error:
        raise UsageError(f"this is no job: {error}\nNothing was published.") from error


def _check_texts(fields: Mapping[str, object]) -> None:
    for name in _TEXTS:
        texts = fields.get(name)
        for key, value in cast("dict[str, object]", texts).items() if isinstance(texts, dict) else ():
            if not isinstance(value, str):
                raise UsageError(f"this is no job: $.{name}.{key}: must be text, not {value!r}\nNothing was published.")


def _read_file(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the job file {path} cannot be read: {error.strerror}") from None
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the job file {path} cannot be read as {path.suffix[1:].upper()}: {error}") from None


def _value(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def setting_of(text: str) -> tuple[str, Json]:
    """Return path and value of `path=value`; a value that is no JSON is text. Raises `UsageError` without either."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise UsageError(f"--set {text}: write it as path=value, as in --set failure.max_failures=3")
    return path, _value(value)


def _set(fields: dict[str, object], setting: str) -> None:
    path, value = setting_of(setting)
    if path.partition(".")[0] in _TEXTS and "." in path:
        value = setting.partition("=")[2]
    _put(fields, path, value)


def _put(fields: dict[str, object], path: str, value: object) -> None:
    *parents, last = path.split(".")
    if "" in (*parents, last):
        raise UsageError(f"--set {path}: a part of the path is empty")
    place = fields
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {path}: {parent} is {inner!r}, which has no parts")
        place = cast("dict[str, object]", inner)
    place[last] = value


def _name_of(entrypoint: str) -> str:
    """`examples/digits.py:train` and `examples.digits:train` are both called digits."""
    where = entrypoint.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(where).stem
    return where.rpartition(".")[2] or "run"
