"""Finding a run's entries: in the live stream, in an archive, or in an exported file.

    history = load("digits.jsonl")          # or an archive's directory or URL, or a run archived in data_dir
    history = await read_log(log, run)      # the live stream

Neither a broker, a controller, Ray nor the user's code is needed for `load`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runfold.events.job import RUN_ID
from runfold.events.log import Log
from runfold.replay.archive import archive_path
from runfold.replay.errors import CannotRead, NotFound
from runfold.replay.export import read_export
from runfold.replay.history import History, Linking, Raw, Where
from runfold.replay.store import is_url, open_store
from runfold.replay.unarchive import read_archive

EXPORT_MAX_BYTES: Final = 4 * 1024**3
LINKED_AT_ONCE_COUNT: Final = 64
"""So many messages of a live log are looked at together, while the broker reads on."""


def load(target: str | Path, *, data_dir: str | Path | None = None, deep: bool = False) -> History:
    """Return the history of an exported file, an archive's directory or URL, or a run archived under `data_dir`.

    A URL ending in `.jsonl` is an exported file. `deep` checks an archive's blobs and output as well (for the audit).
    Damage does not raise: it stands in the history. Raises `NotFound` or `CannotRead`.
    """
    with _without_collector():
        return _load(str(target), data_dir, deep=deep)


def _load(text: str, data_dir: str | Path | None, *, deep: bool) -> History:
    if is_url(text):
        return _export_at_url(text) if text.endswith(".jsonl") else read_archive(open_store(text), deep=deep).history
    looked: list[str] = []
    if data_dir is not None and RUN_ID.fullmatch(text):
        where = archive_path(data_dir, text)
        looked.append(where)
        try:
            return read_archive(open_store(where), deep=deep).history
        except NotFound:
            pass
    path = Path(text)
    looked.append(str(path))
    try:
        if path.is_dir():
            return read_archive(open_store(path), deep=deep).history
        if path.is_file():
            return _export_in_file(path)
    except OSError as error:
        raise CannotRead(f"{path}: {error}") from error
    raise NotFound(f"no run, export or archive called {text!r}: looked at {', '.join(looked)}")


async def read_log(log: Log, run: str) -> History:
    """Return the history in a run's live log as far as it goes now; without links when the log is empty."""
    name = f"the log of {run}"
    linking, raws = Linking(run), list[Raw]()
    with _without_collector():
        async for stored in log.read():
            raws.append(Raw(data=stored.data, where=Where(file=name, sequence=stored.sequence)))
            if len(raws) == LINKED_AT_ONCE_COUNT:
                linking.take(raws)
                raws.clear()
        linking.take(raws)
    linked = linking.linked()
    return History(target=run, kind="stream", run=run, links=linked.links, strays=linked.strays, damages=linked.damages)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Let a long history be built without the garbage collector looking through it again and again: it has no cycles.

    Measured: 100,000 entries in 0.4 s instead of 1.1 s. What was built is handed to the oldest generation unseen, which
    takes no time: else the collector would look through all of it as soon as it may, a tenth of what reading took.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _export_in_file(path: Path) -> History:
    size = path.stat().st_size
    if size > EXPORT_MAX_BYTES:
        raise CannotRead(f"{path} has {size} bytes, more than export_max_bytes ({EXPORT_MAX_BYTES}); archive the run")
    return read_export(path.read_bytes(), path.name)


def _export_at_url(url: str) -> History:
    folder, _, name = url.rpartition("/")
    try:
        return read_export(open_store(folder).read(name), name)
    except FileNotFoundError:
        raise NotFound(f"nothing stands at {url}") from None
    except OSError as error:
        raise CannotRead(f"{url}: {error}. Try again when the storage answers") from error
