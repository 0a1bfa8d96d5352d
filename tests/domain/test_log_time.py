"""The time that passed for a process, from observations of the log and of its own elapsed time."""

from __future__ import annotations

from itertools import count

from store.domain.log_time import WRITE, LogTime

SECOND = 1_000_000
START = 1_750_000_000 * SECOND


class Process:
    """A process that writes to a log, and whose elapsed time a test sets."""

    def __init__(self, longest_step: float | None = None, last_stamp: int = START) -> None:
        self.elapsed = 0
        self.last = last_stamp
        self.clock = last_stamp
        self.time = LogTime(0, None if longest_step is None else round(longest_step * SECOND))
        self.time.open(0, last_stamp, 0)

    def waits(self, seconds: float, *, steps: int = 1) -> Process:
        for _ in range(steps):
            self.elapsed += round(seconds * SECOND / steps)
            self.clock += round(seconds * SECOND / steps)
            self.time.advance(self.elapsed * 1000)
        return self

    def records(self) -> int:
        """Commit an event and return its timestamp."""
        before, self.last = self.last, max(self.clock, self.last + 1)
        now = self.elapsed * 1000
        self.time.committed.append((now, now, self.clock, before, self.last, {}))
        self.time.advance(now)
        return self.last

    def looks(self) -> LogTime:
        """Begin a batch that may judge."""
        self.time.begin(self.elapsed * 1000, self.last, self.clock)
        return self.time

    def silence(self, stamp: int, limit: float) -> float:
        """Return the silence since an event of an attempt, in seconds."""
        return self.looks().silence("a1", stamp, stamp, stamp, round(limit * SECOND)) / SECOND


def test_the_time_since_an_event_is_that_of_the_process() -> None:
    process = Process()
    stamps = [process.waits(7).records() for _ in range(3)]
    process.waits(2)
    assert [process.looks().since(stamp) / SECOND for stamp in stamps] == [16, 9, 2]


def test_before_the_store_was_opened_time_passed_as_the_timestamps_show() -> None:
    process = Process().waits(3)
    process.records()
    assert process.looks().since(START - 5 * SECOND) == 8 * SECOND


def test_many_observations_need_little_memory_and_never_make_an_event_older() -> None:
    process = Process()
    stamps = [process.waits(2).records() for _ in range(20_000)]
    now = process.looks()
    for number, stamp in enumerate(reversed(stamps)):
        assert 0 <= now.since(stamp) <= number * 2 * SECOND
    assert now.since(stamps[-1]) == 0
    assert now.since(stamps[0]) >= 39_000 * SECOND


def test_a_long_suspension_begins_the_silence_again() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    process.waits(4, steps=8)
    assert process.silence(stamp, limit=5) == 4
    process.waits(60)
    assert process.silence(stamp, limit=5) == 0
    assert process.looks().since(stamp) == 4 * SECOND
    process.waits(5, steps=10)
    assert process.silence(stamp, limit=5) == 5


def test_a_suspension_that_is_short_for_the_limit_is_only_left_out() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    for seconds in count(1):
        process.waits(2).waits(1, steps=2)
        assert process.silence(stamp, limit=30) == seconds
        if seconds > 30:
            break


def test_time_without_a_database_does_not_pass_even_before_this_was_noticed() -> None:
    process = Process()
    stamp = process.waits(1).records()
    process.waits(20, steps=40)
    process.time.lose(process.elapsed * 1000)
    process.waits(10)
    assert process.time.heard == 1 * SECOND
    assert process.time.is_lost
    process.time.available(process.elapsed * 1000, process.last)
    assert process.time.is_lost  # it can be read, but a heartbeat could not be recorded
    process.records()
    assert not process.time.is_lost
    assert process.silence(stamp, limit=5) == 0
    assert process.waits(4).silence(stamp, limit=5) == 4


def test_a_log_that_went_back_is_another_log() -> None:
    process = Process()
    stamps = [process.waits(10).records() for _ in range(5)]
    process.last = stamps[1]
    assert process.silence(stamps[0], limit=5) == 0
    assert process.waits(3).silence(stamps[0], limit=5) == 3


def test_a_clock_that_stands_still_hides_no_time() -> None:
    process = Process()
    process.clock -= 3600 * SECOND
    stamps = [process.waits(1).records() for _ in range(10)]
    assert stamps[-1] - stamps[0] == 9
    assert [process.looks().since(stamp) / SECOND for stamp in stamps] == list(range(9, -1, -1))


def test_a_clock_that_jumps_adds_no_time() -> None:
    process = Process()
    before = process.waits(1).records()
    process.clock += 3600 * SECOND
    after = process.waits(1).records()
    assert after - before == 3601 * SECOND
    assert process.waits(1).looks().since(before) == 2 * SECOND


def test_a_wait_for_the_database_is_not_heard() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    process.waits(2, steps=4)
    process.time.wait(WRITE, process.elapsed * 1000)
    process.waits(35, steps=70)
    process.time.resume(WRITE, process.elapsed * 1000)
    assert process.looks().since(stamp) / SECOND == 2.2
    assert process.silence(stamp, limit=10) == 0
    assert process.silence(stamp, limit=300) == 2.2
    assert process.waits(10, steps=20).silence(stamp, limit=10) == 10


def test_short_waits_count_as_heard_time() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    for _ in range(100):
        process.time.wait(WRITE, process.elapsed * 1000)
        process.waits(0.1)
        process.time.resume(WRITE, process.elapsed * 1000)
    assert process.looks().since(stamp) == 10 * SECOND


def test_a_database_that_is_always_slow_only_slows_the_heard_time() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    for _ in range(100):
        process.time.wait(WRITE, process.elapsed * 1000)
        process.waits(1.2)
        process.time.resume(WRITE, process.elapsed * 1000)
    assert process.looks().since(stamp) == 20 * SECOND
    assert process.time.settling <= 0


def test_a_commit_shows_that_a_waiting_read_alone_is_slow() -> None:
    process = Process(longest_step=1.5)
    stamp = process.waits(1).records()
    process.time.wait("read", process.elapsed * 1000)
    for _ in range(50):
        process.waits(0.1).records()
    process.time.resume("read", process.elapsed * 1000)
    assert process.looks().since(stamp) == 5 * SECOND


def test_a_sign_of_life_that_waited_for_the_database_is_not_older_for_it() -> None:
    process = Process(longest_step=1.5)
    start = process.waits(1).records()
    sent = process.waits(1).clock
    process.time.wait(WRITE, process.elapsed * 1000)
    process.waits(35, steps=70)
    process.time.resume(WRITE, process.elapsed * 1000)
    recorded = process.records()
    now = process.looks()
    assert recorded - sent == 35 * SECOND
    assert now.silence("a1", recorded, sent, start, 10 * SECOND) <= SECOND // 4
    assert (
        process.waits(3, steps=6).looks().silence("a1", recorded, sent - 2 * SECOND, start, 10 * SECOND) >= 4 * SECOND
    )


def test_no_attempt_is_overdue_directly_after_a_long_pause() -> None:
    process = Process(longest_step=1.5)
    process.waits(1).records()
    process.waits(12)
    assert process.time.settling == SECOND
    assert process.waits(1.1, steps=2).looks().settling < 0
