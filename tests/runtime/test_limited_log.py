"""Failures that repeat many times per second are logged once in a minute."""

from __future__ import annotations

import logging

import pytest

from store.runtime.limited_log import LimitedLog


def test_a_failure_that_repeats_is_one_line_without_a_traceback_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(logging.getLogger("store.test"), lambda: now)
    for _ in range(1000):
        limited.warning("calls are refused", OSError("the disk is full"))
    limited.warning("keys cannot be read", OSError("the disk is full"))
    now = 61.0
    limited.warning("calls are refused", OSError("the file was replaced"))
    assert [record.getMessage() for record in caplog.records] == [
        "calls are refused: the disk is full",
        "keys cannot be read: the disk is full",
        "calls are refused: the file was replaced (and 999 times since the last such line)",
    ]
    assert not any(record.exc_info for record in caplog.records)
