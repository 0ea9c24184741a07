"""Fixtures that every test may ask for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

# Who runs tests in the background has interrupts ignored, which every command under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A law is no measure of speed: on a busy machine an example may take its time, and so may what makes it.
PATIENT: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time: what a change breaks is told from what nobody has met yet, which `make laws` looks for.
settings.register_profile("runfold", PATIENT, derandomize=True)
settings.register_profile("laws", PATIENT)
settings.load_profile("runfold")

LONGEST: Final = (
    "test_kills.py",
    "test_seeds.py",
    "test_hangs.py",
    "test_service.py",
    "test_broker_away.py",
    "test_full_log.py",
    "test_pool_heirs.py",
    "test_disk_full.py",
    "test_nodes.py",
    "test_new_user.py",
    "test_preempting.py",
    "test_help.py",
    "test_damage.py",
    "test_run.py",
    "test_spot_fleets.py",
    "test_produced.py",
)
"""Files that take half a minute or more. Workers that are given one of these last keep all others waiting."""

pytest_plugins = ["support.broker", "support.commands", "support.ranks", "support.pool", "support.supervisors"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the tests that take their time: `make soak`."""
    parser.addoption("--soak", action="store_true", help="run the tests that take minutes, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out, or take them alone; begin with the files that take the longest."""
    wanted: bool = config.getoption("--soak")
    left_out = {item for item in items if (item.get_closest_marker("soak") is not None) != wanted}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    turns = {name: turn for turn, name in enumerate(LONGEST)}
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: turns.get(item.path.name, len(turns)))
