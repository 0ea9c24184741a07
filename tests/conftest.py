"""Fixtures that every test may ask for."""

from __future__ import annotations

pytest_plugins = ["support.broker", "support.commands", "support.ranks", "support.pool", "support.supervisors"]
