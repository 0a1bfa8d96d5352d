"""Ids have the form of the contract; timestamps are converted without loss."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.runtime import ids
from store.runtime.clock import system_clock, to_micros, to_seconds


@pytest.mark.parametrize(
    "fresh,form",
    [
        (ids.rollout_id, "ro-[0-9a-f]{12}"),
        (ids.attempt_id, "at-[0-9a-f]{8}"),
        (ids.resources_id, "rs-[0-9a-f]{12}"),
        (ids.trace_id, "[0-9a-f]{32}"),
        (ids.span_id, "[0-9a-f]{16}"),
    ],
)
def test_ids_have_the_form_of_agent_lightning(fresh: Callable[[], str], form: str) -> None:
    drawn = [fresh() for _ in range(100)]
    assert all(re.fullmatch(form, text) for text in drawn)
    assert len(set(drawn)) == len(drawn)


def test_ids_of_rollouts_rise_also_when_many_are_drawn_at_once() -> None:
    drawn = [ids.rollout_id() for _ in range(20_000)]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == len(drawn)


def test_ids_of_rollouts_go_on_rising_when_the_clock_goes_back() -> None:
    times = iter([5_000_000_000, 9_000_000_000, 1_000_000_000])
    rising = ids.Rising(lambda: next(times))
    first, second, third = [rising.draw() for _ in range(3)]
    assert first < second < third
    assert second - first > 200 * 2**12


def test_threads_that_draw_ids_at_once_draw_different_ones() -> None:
    def draw(count: int) -> list[str]:
        return [ids.rollout_id() for _ in range(count)]

    with ThreadPoolExecutor(8) as pool:
        drawn = list(chain.from_iterable(pool.map(draw, [2_000] * 8)))
    assert len(set(drawn)) == len(drawn)


def test_processes_that_draw_ids_in_the_same_tick_rarely_draw_the_same() -> None:
    ticks = [tick << 24 for tick in range(2_000)]
    one, other = ({rising.draw() for _ in ticks} for rising in (ids.Rising(iter(ticks).__next__) for _ in range(2)))
    # One draw in 4,096 each; twenty of 2,000 are more than a lifetime of test runs will see.
    assert len(one & other) < 20


@pytest.mark.parametrize("fresh", [ids.attempt_id, ids.resources_id, ids.span_id])
def test_every_digit_of_other_ids_is_as_likely_as_any_other(fresh: Callable[[], str]) -> None:
    drawn = 4_000
    for place in range(-8, 0):
        seen = Counter(fresh()[place] for _ in range(drawn))
        # Sixteen digits, 250 each on average; nine standard deviations are less than one false alarm in a lifetime.
        assert all(abs(seen[digit] - drawn / 16) < 140 for digit in "0123456789abcdef")


def test_a_span_id_is_never_all_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([bytes(8), bytes(8), b"\0" * 7 + b"\1"])

    def urandom(size: int) -> bytes:
        drawn = next(draws)
        assert len(drawn) == size
        return drawn

    monkeypatch.setattr("os.urandom", urandom)
    assert ids.span_id() == "0000000000000001"


def test_the_system_clock_counts_microseconds_since_the_epoch() -> None:
    before = time.time()
    assert before - 1 < system_clock() / 1_000_000 < time.time() + 1
    assert isinstance(system_clock(), int)


@given(st.integers(min_value=0, max_value=2**32 * 1_000_000))
def test_a_stamp_comes_back_from_float_seconds_as_it_went_until_2106(stamp: int) -> None:
    assert to_micros(to_seconds(stamp)) == stamp


def test_keys_of_calls_rise_and_are_long_enough_to_be_unique() -> None:
    drawn = [ids.call_key() for _ in range(1000)]
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in drawn)
    assert drawn == sorted(drawn)
    assert len({text[12:] for text in drawn}) == len(drawn)
