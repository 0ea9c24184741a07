"""The run's clock: stands until started, never goes back, repeats a take-over's `t`."""

from runfold.controller.clock import RunClock


class Ticks:
    """A monotonic clock moved by hand."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def test_it_stands_still_until_it_is_started() -> None:
    ticks = Ticks()
    clock = RunClock(ticks)
    ticks.s += 5
    assert clock.now() == 0.0
    clock.start()
    ticks.s += 1.25
    assert clock.now() == 1.25


def test_a_take_over_repeats_t_and_adds_the_gap_afterwards() -> None:
    ticks = Ticks()
    clock = RunClock(ticks)
    clock.advance(812.345678)
    assert clock.now() == 812.345678
    clock.start()
    ticks.s += 0.5
    clock.advance(10)
    assert clock.now() == 822.845678
    ticks.s += 1
    assert clock.now() == 823.845678


def test_it_never_goes_back() -> None:
    ticks = Ticks()
    clock = RunClock(ticks)
    clock.start()
    ticks.s += 3
    assert clock.now() == 3.0
    ticks.s -= 2
    clock.advance(-7)
    assert clock.now() == 3.0


def test_it_says_how_long_to_wait_and_never_spins() -> None:
    ticks = Ticks()
    clock = RunClock(ticks)
    clock.start()
    assert clock.until(2.5) == 2.5
    assert clock.until(-1) > 0


def test_t_is_written_in_microseconds() -> None:
    ticks = Ticks()
    clock = RunClock(ticks)
    clock.start()
    ticks.s += 1 / 3
    assert clock.now() == 0.333333
