"""Parsing and formatting of times and durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from store.cli.output.times import ago, duration, in_words, local, moment, utc

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1234", 1234),
        ("0", 0),
        ("2026-11-20T02:00:00Z", datetime(2026, 11, 20, 2, tzinfo=UTC)),
        ("2026-11-20T02:00:00.5+01:00", datetime(2026, 11, 20, 1, 0, 0, 500_000, tzinfo=UTC)),
        ("10m ago", NOW - timedelta(minutes=10)),
        ("10 min ago", NOW - timedelta(minutes=10)),
        ("1.5 hours ago", NOW - timedelta(minutes=90)),
        ("2 days ago", NOW - timedelta(days=2)),
    ],
)
def test_positions_and_times_are_distinguished(text: str, expected: int | datetime) -> None:
    assert moment(text, NOW) == expected


@pytest.mark.parametrize("text, hour", [("2026-11-20 03:00", 3), ("2026-11-20T03:00:00", 3), ("2026-11-20", 0)])
def test_a_time_without_an_offset_is_local(text: str, hour: int) -> None:
    assert moment(text) == datetime(2026, 11, 20, hour).astimezone()


@pytest.mark.parametrize("text, second", [("3:07", 0), ("03:07", 0), ("3:07:09", 9)])
def test_a_time_of_day_is_todays(text: str, second: int) -> None:
    today = datetime(2026, 11, 20, 18, 30).astimezone()
    assert moment(text, today) == datetime(2026, 11, 20, 3, 7, second).astimezone()


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1.5", "2026-13-01", "25:00", "ten minutes ago", "٣"])
def test_text_that_is_neither_position_nor_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="10m ago"):
        moment(text, NOW)


def test_a_moment_is_repeated_with_its_offset() -> None:
    assert in_words(17) == "position 17"
    said = in_words(NOW)
    assert datetime.fromisoformat(said) == NOW


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (0.000042, "42 µs"),
        (0.0032, "3.2 ms"),
        (0.25, "250 ms"),
        (1.254, "1.25 s"),
        (3, "3 s"),
        (59.994, "59.99 s"),
        (59.996, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3840, "1 h 04 min"),
        (200_000, "2 d 7 h"),
        (-1.5, "-1.50 s"),
    ],
)
def test_a_duration_has_the_figures_that_tell_something(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "seconds, text",
    [(0.2, "now"), (42, "42 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (190_000, "2 d ago"), (-90, "in 1 min")],
)
def test_age_is_printed_in_one_unit(seconds: float, text: str) -> None:
    assert ago(1_000_000.0 - seconds, 1_000_000.0) == text


def test_times_are_exact_to_the_microsecond_in_utc_and_to_the_millisecond_on_the_wall() -> None:
    time = 1_795_178_406.917013
    assert utc(time) == "2026-11-20T12:40:06.917013Z"
    wall = datetime.fromisoformat(local(time)).astimezone()
    assert wall == datetime(2026, 11, 20, 12, 40, 6, 917_000, tzinfo=UTC)
    assert local(time, date=False) == local(time)[11:]
    assert (utc(None), local(None), ago(None, 0.0)) == ("", "", "")
