"""What validations on a Ray cluster print: kept where they are until their supervisor has it, up to a size."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import cast

import msgspec

from runfold.workers.outside import Said
from runfold.workers.pools.ray import printed
from runfold.workers.pools.ray.printed import Printed
from runfold.workers.pools.ray.validator import Over, Validator
from support.waiting import until


async def test_what_was_printed_last_is_told_again_with_the_answer_that_was_lost() -> None:
    kept = Printed()
    os.write(kept.fd, b"last words\n")
    kept.given()

    async def done() -> Said:
        return Said(value={"score": 1})

    one = cast("Validator", SimpleNamespace(_doing=asyncio.ensure_future(done()), _printed=kept, _over=None))
    first, again = await Validator.said(one), await Validator.said(one)
    assert first == again
    assert msgspec.msgpack.decode(again, type=Over).printed == b"last words\n"
    await until(lambda: kept._reading < 0)


async def test_what_is_printed_is_kept_up_to_a_size_and_what_is_left_out_is_counted() -> None:
    kept = Printed()
    os.write(kept.fd, b"first\n")
    assert (kept.take(), kept.take()) == (b"first\n", b"")
    total = 0
    while total < printed.PRINTED_MAX_BYTES + 1000:
        total += os.write(kept.fd, b"x" * 1000)
        await asyncio.sleep(0)
    os.write(kept.fd, b"last\n")
    kept.given()
    said = kept.take()
    first, _, rest = said.partition(b"\n")
    assert first == b"[%d bytes of output are left out here]" % (total + 5 - printed.PRINTED_MAX_BYTES)
    assert (len(rest), rest[-5:]) == (printed.PRINTED_MAX_BYTES, b"last\n")
    await until(lambda: kept._reading < 0)
    assert kept.take() == b""
