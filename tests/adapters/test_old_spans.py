"""Spans of earlier versions give the same triplets, messages and transcripts, except where the old result was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.old_spans import expected, read_file, results

ATTEMPTS = list(read_file())


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=[attempt["name"] for attempt in ATTEMPTS])
def test_spans_of_earlier_versions_read_as_before(attempt: Any) -> None:
    for view, readers in results(attempt["spans"]).items():
        for reader, today in readers.items():
            before, now, reason = expected(attempt["results"], view, reader)
            assert today == now, f"{reader} of {view}"
            assert (today != before) == bool(reason), f"{reader} of {view}"


def test_the_file_has_every_kind_of_result() -> None:
    values = [value for attempt in ATTEMPTS for readers in attempt["results"].values() for value in readers.values()]
    assert {list, str, dict} == {type(value) for value in values}
    assert len(ATTEMPTS) >= 35
