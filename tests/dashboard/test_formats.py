"""Formats of values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.dashboard.views import formats


def test_a_small_reward_is_not_zero() -> None:
    assert [formats.reward(value) for value in (0.0004, -0.0004, 0.0005, 0)] == [
        "<0.001",
        ">\u22120.001",
        "0.001",
        "0.000",
    ]
    assert formats.signed(0.0004) == "+0.000"


@pytest.mark.parametrize(
    "formatter, value, expected",
    [
        (formats.duration, 0.9996, "1000 ms"),
        (formats.duration, 0.000_999_6, "1000 µs"),
        (formats.duration, 0, "0 s"),
        (formats.duration, -59.97, "-60 s"),
        (formats.size, 1010 * 1024, "1010 KiB"),
        (formats.short, 999.6, "1000"),
        (formats.short, 999_600, "1000k"),
        (formats.short, 12_345, "12.3k"),
        (formats.number, 12_345.67, "12,346"),
        (formats.number, -9_999.7, "-10,000"),
        (formats.number, 0.000_012, "1.2e-05"),
        (formats.percent, 0.9996, "100 %"),
        (formats.percent, 12.5, "1250 %"),
    ],
)
def test_a_large_number_is_never_written_as_a_power_of_ten(
    formatter: Callable[[float], str], value: float, expected: str
) -> None:
    assert formatter(value) == expected
