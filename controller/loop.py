"""THE loop of a run: read, decide, append, fold, show. Nothing else appends to a log, or shows what it says.

Promise 2 (write-ahead): what is shown was folded from acknowledged entries. Promise 3 (one writer): one append is
outstanding, repeated byte for byte until it is answered, and nothing is decided for the run meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from runfold.controller.alarm import HEIR_PATIENCE_S, Alarm
from runfold.controller.clock import RunClock
from runfold.controller.compose import Draft, draft
from runfold.controller.liveness import Heard
from runfold.controller.patience import GaveUp, Patience, stored_at_s
from runfold.controller.ports import RunPorts
from runfold.controller.reading import read_delivered
from runfold.controller.safe import first_of, root_of, shown, shown_error
from runfold.controller.seed import (
    Dropped,
    Ended,
    Ending,
    Identity,
    Kept,
    KnownRun,
    LimitReached,
    NewRun,
    Over,
    Quarantined,
    Stopped,
)
from runfold.controller.showing import Showing
from runfold.controller.takeover import LogDamaged, check_beginning, read_run
from runfold.controller.vigil import Vigil
from runfold.controller.waiting import Waiting
from runfold.events.conclusions import ControllerStarted
from runfold.events.entry import AnyInput, Head, hash_entry
from runfold.events.fold import fold
from runfold.events.limits import ENTRY_MAX_BYTES, TAKEOVER_GAP_MAX_S
from runfold.events.log import Appended, Damaged, Fenced
from runfold.events.snapshot import StateSnapshot, decode_snapshot, fold_version
from runfold.events.state import AnyState, RunState
from runfold.events.subjects import Subjects

MARK_TIMEOUT_S: Final = 10.0
"""How long the mark of a quarantined run is tried to be shown."""

_log = logging.getLogger(__name__)


class Loop:
    """One run's loop. `run` is its whole life; `standing` is set once its first entry is acknowledged.

    With a job it begins by entry 0; without, by reading the run's log and taking it over.
    """

    def __init__(
        self,
        run: str,
        job: NewRun | None,
        ports: RunPorts,
        me: Identity,
        *,
        subjects: Subjects,
        monotonic: Callable[[], float],
        at: Callable[[], str],
    ) -> None:
        self.run_id = run
        self.standing = asyncio.Event()
        self._job, self._ports, self._me, self._subjects, self._at = job, ports, me, subjects, at
        self._clock = RunClock(monotonic)
        self._state: AnyState | None = None if job is None else job.state
        self._head: Head | None = None
        self._last_sequence = 0
        self._alarm = Alarm(0.0 if job is not None else HEIR_PATIENCE_S)
        self._asked: Ending = Stopped()
        self._wake = asyncio.Event()
        self._patience = Patience(f"run {run}")
        self._fold = fold_version(me.decider.version)
        self._vigil = Vigil(ports.ear, self._wake.set)
        self._showing = Showing(run, ports, is_new=job is not None, fold=self._fold)
        self._owner: asyncio.TaskGroup | None = None
        self._beside: list[asyncio.Task[None]] = []

    @property
    def generation(self) -> int:
        """The generation of the log that was folded."""
        restored = self._state.restored if isinstance(self._state, RunState) else None
        return restored.generation if restored is not None else 1

    def stop(self, ending: Ending | None = None) -> None:
        """Ask the loop to end after its turn: like this, or to be taken up again."""
        self._asked = ending or Stopped()
        self._patience.over = True
        self._wake.set()

    def show_again(self) -> None:
        """Show the status once more: what stands may have been lost."""
        if isinstance(self._state, RunState) and self._head is not None and self.standing.is_set():
            self._showing.show_status(self._state, self._head)

    async def run(self) -> Ending:
        """Return how it ended. An error ends this run's loop alone, and is shown on its status."""
        ending: Ending
        try:
            async with asyncio.TaskGroup() as self._owner:
                self._beside += self._showing.serve(self._owner)
                ending = await self._live()
                for task in self._beside:
                    task.cancel()
        except Exception as error:
            reached = first_of(error)
            if isinstance(reached, LimitReached):
                ending = Quarantined(str(reached))
            else:
                _log.error("run %s: an error in its loop\n%s", self.run_id, shown_error(error))
                ending = Quarantined(f"an error in the controller: {shown(root_of(error))}")
        finally:
            await self._vigil.close()
            await self._ports.inbox.close()
        if isinstance(ending, Quarantined):
            await self._mark(ending.reason)
        return ending

    async def _live(self) -> Ending:
        try:
            state = await self._begin()
            waiting = Waiting(state.cursor)
            while not state.terminal:
                state = await self._next(state, waiting)
            await self._showing.drained()
        except Over as over:
            return over.ending
        except GaveUp:
            return self._asked
        return Ended(state.job)

    async def _begin(self) -> RunState:
        """Write entry 0, or the entry by which this controller takes the run over; only then hear the inbox."""
        started = ControllerStarted(controller=self._me.controller, decider=self._me.decider)
        ask, log = self._patience.ask, self._ports.log
        if self._job is not None:
            state = await self._commit(self._job.state, self._draft(self._job.state, (self._job.taken, started), None))
        else:
            known = await self._read_back()
            self._state, self._head, self._last_sequence = known.state, known.head, known.last_sequence
            self._showing.accepted_at = known.accepted_at
            if known.state.terminal:
                self._showing.show(known.state, known.head, decided=True)
                return known.state
            self._clock.advance(known.state.t)
            state = await self._commit(known.state, self._draft(known.state, (started,), known.state.cursor))
            now_s = await ask(lambda: stored_at_s(log, self._last_sequence))
            self._clock.advance(min((now_s or known.stored_at_s) - known.stored_at_s, TAKEOVER_GAP_MAX_S))
        await ask(lambda: self._ports.inbox.open(state.cursor, self._wake.set))
        await ask(lambda: self._vigil.open(state, self._tick))
        return state

    def _tick(self, heard: Heard, tick_s: float) -> None:
        """Pass a tick on. All runs of a controller share it: what goes wrong here may end this loop alone."""
        if self._patience.over:
            return
        try:
            self._vigil.tick(heard, tick_s)
        except Exception as error:
            _log.error("run %s: an error in what is concluded of silence\n%s", self.run_id, shown_error(error))
            self.stop(Quarantined(f"an error in the controller: {shown(root_of(error))}"))

    async def _read_back(self) -> KnownRun:
        """Read the log, from the newest snapshot on; what lies before that is checked while the run goes on."""
        ask, log = self._patience.ask, self._ports.log
        kept, found = await ask(self._showing.kept), await ask(self._ports.snapshots.newest)
        snapshots = [one for data in found if (one := decode_snapshot(data, self.run_id, self._fold)) is not None]
        known = await ask(lambda: read_run(log, self.run_id, kept, snapshots))
        if known.strays_count:
            _log.warning(
                "run %s: %d messages in its log are no entries and are stepped over; `runfold audit` names them",
                self.run_id,
                known.strays_count,
            )
        if known.base is not None and self._owner is not None:
            self._beside.append(self._owner.create_task(self._check(known.base, known.unchecked)))
        return known

    async def _check(self, base: StateSnapshot, kept: Sequence[Kept]) -> None:
        try:
            await self._patience.ask(lambda: check_beginning(self._ports.log, self.run_id, base, kept))
        except LogDamaged as damage:
            self.stop(damage.ending)
        except GaveUp:
            return

    async def _next(self, state: RunState, waiting: Waiting) -> RunState:
        """Wait until something is due, and decide on it."""
        while not self._patience.over:
            self._wake.clear()
            while not waiting.full and (delivered := self._ports.inbox.take()) is not None:
                waiting.add(read_delivered(delivered, self.run_id, self._subjects), self._clock.now())
            t = self._clock.now()
            caught_up = self._ports.inbox.caught_up
            heard_all = caught_up and not self._vigil.awaits_words
            timers = (*self._vigil.concluded(caught_up=caught_up), *self._alarm.due(state, t, caught_up=heard_all))
            if timers or (waiting.due_t is not None and waiting.due_t <= t):
                return await self._turn(state, waiting, timers)
            due = [due_t for due_t in (waiting.due_t, self._alarm.wake_t(state, t)) if due_t is not None]
            try:
                async with asyncio.timeout(self._clock.until(min(due)) if due else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
        raise Over(self._asked)

    async def _turn(self, state: RunState, waiting: Waiting, timers: Sequence[AnyInput]) -> RunState:
        """Write one entry of what waits; half as much, and half again, until it fits."""
        batch = waiting.select(state)
        while timers or batch.inputs:
            written = self._draft(state, (*batch.inputs, *timers), batch.cursor)
            if len(written.data) <= ENTRY_MAX_BYTES or len(batch.inputs) <= 1:
                state = await self._commit(state, written)
                break
            batch = waiting.select(state, len(batch.inputs) // 2)
        else:
            await asyncio.sleep(0)  # a flood of repeats must not keep other runs waiting
        waiting.remove(batch, self._clock.now())
        if batch.gap and self._head is not None:
            self._showing.show_folded(state, self._head, again=True)
        return state

    def _draft(self, state: AnyState, inputs: Sequence[AnyInput], cursor: tuple[str, int] | None) -> Draft:
        t, at, by = self._clock.now(), self._at(), self._me.controller
        return draft(state, self._head, inputs, t=t, at=at, by=by, cursor=cursor)

    async def _commit(self, state: AnyState, written: Draft) -> RunState:
        """Append the entry; only once it is acknowledged fold it, and show what it made of the run."""
        entry, data, digest = written.entry, written.data, hash_entry(written.data)
        if len(data) > ENTRY_MAX_BYTES:
            raise Over(
                Quarantined(f"entry {entry.n}: {len(data)} bytes, more than entry_max_bytes ({ENTRY_MAX_BYTES})")
            )
        expected, append = self._last_sequence, self._ports.log.append
        answer = await self._patience.ask(
            lambda: append(data, n=entry.n, digest=digest, prev=entry.prev, last_sequence=expected)
        )
        match answer:
            case Appended(sequence=sequence):
                self._last_sequence = sequence
            case Fenced(sequence=sequence):
                where = f"at sequence {sequence} of the log, where ours belonged"
                raise Over(Dropped(f"another controller's entry stands {where}"))
            case Damaged(found_sequence=found):
                raise Over(Quarantined(f"the log ends at sequence {found}, but had acknowledged {expected}"))
            case _:
                assert_never(answer)
        after = self._state = fold(state if isinstance(state, RunState) else None, entry)
        self._head = Head(n=entry.n, hash=digest)
        if not self.standing.is_set():
            self._showing.accepted_at = self._showing.accepted_at or entry.at
            self._clock.start()
            self.standing.set()
        self._vigil.see(after)
        self._showing.tell(entry)
        self._showing.show(after, self._head, decided=bool(entry.transitions))
        self._showing.keep(after, self._head, self._last_sequence)
        return after

    async def _mark(self, reason: str) -> None:
        """Show the quarantine, if the broker and the state allow it; the log says nothing of it."""
        _log.error("run %s: quarantined, nothing is appended any more: %s", self.run_id, shown(reason))
        try:
            async with asyncio.timeout(MARK_TIMEOUT_S):
                await self._patience.ask(lambda: self._showing.show_quarantine(self._state, self._head, reason))
        except TimeoutError:
            why = f"the broker did not take it within {MARK_TIMEOUT_S:g} s"
            _log.error("run %s: its quarantine could not be shown: %s", self.run_id, why)
        except Exception as error:
            _log.error("run %s: its quarantine could not be shown: %s", self.run_id, shown(error))
