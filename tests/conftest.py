"""Fixtures that every test may ask for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

# Who runs tests in the background has interrupts ignored, which every command under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A law is no measure of speed: on a busy machine an example may take its time, and so may what makes it.
settings.register_profile("runfold", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("runfold")

pytest_plugins = ["support.broker", "support.commands", "support.ranks", "support.pool", "support.supervisors"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the tests that take their time: `make soak`."""
    parser.addoption("--soak", action="store_true", help="run the tests that take minutes, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out, or take them alone."""
    wanted: bool = config.getoption("--soak")
    left_out = [item for item in items if (item.get_closest_marker("soak") is not None) != wanted]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
