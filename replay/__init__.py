"""Asking the log afterwards: timeline, state at an entry, verify, audit, archive."""
