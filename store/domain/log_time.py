"""The time for which a process has received no sign of life from an attempt. The watchdog uses this time. Decision 52.

The timestamps of the log come from wall clocks, which may jump or be wrong. A process may also be suspended or lose its
connection to the database. The watchdog therefore does not compare timestamps with a wall clock. Each process records
pairs of a log timestamp and the elapsed time at which it observed this timestamp. From these pairs, the process
computes how long ago an event was recorded.

Heard time is the time, since this process opened the store, during which the process was able to receive signs of life.
Heard time stops while the process is suspended, while the database is unavailable, and while an operation waits for the
database. Such an interval is called a pause. All times are in microseconds, except the elapsed time, which the caller
passes in nanoseconds of a monotonic clock. Decisions 52 and 81 describe the rules.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

_FOREVER = 2**62
# Observations that are further apart than this do not show when the events between them were recorded.
_NEAR = 1_000_000
# A deviation of timestamps from the heard time is ignored if it is not larger than this.
_TOLERANCE = 250_000
_MAX_STRETCHES = 4096
_MAX_SIGNS = 20_000
_MAX_PAUSES = 64
# A pause that is shorter than the limit divided by this number does not restart the measurement of silence. Otherwise,
# a process with many short pauses would never find a silent attempt.
_SHORT_PAUSES = 4
SHORT_WAIT: Final = 200_000_000
"""The time in nanoseconds for which a wait for the database counts as heard time. Decision 81.

Of a longer wait, only the beginning counts. So a database that is always slow slows the heard time down, but does not
stop it.
"""
_SHORT_WAIT = SHORT_WAIT // 1_000
# After a pause of at least this length, no attempt is overdue until this much heard time has passed. The signs of life
# that were under way during the pause, also to other processes, are recorded in this time.
_SETTLING = 1_000_000
# The next settling time begins only after this much heard time. Otherwise, frequent pauses could prevent all
# judgements.
_SETTLING_AGAIN = 5_000_000


WRITE: Final = "write"
"""The operation of the writer in `LogTime.wait`."""
Beats = Mapping[str, tuple[int, int]]
"""The heartbeats in a batch, by attempt id: the timestamp at which a heartbeat was recorded, and its own time."""
Commit = tuple[int, int, int, int, int, Beats]
"""A commit of this process.

The values are the elapsed times at which the batch began and was committed, the wall-clock time at which the batch
began, the greatest timestamps of the log before and after the batch, and the heartbeats in the batch.
"""


@dataclass(slots=True)
class _Stretch:
    """A series of observations that are close together. Between them, timestamps and heard time advanced equally."""

    first_stamp: int
    first_heard: int
    last_stamp: int
    last_heard: int


@dataclass(slots=True)
class Sweeping:
    """The result of the last sweep, which determines the time of the next sweep."""

    stamp: int = -_FOREVER
    """The sweep examined the rollouts whose next check is before this timestamp."""
    until: int | None = None
    """The earliest heard time at which a postponed attempt exceeds a limit; None if no attempt was postponed.

    An attempt is postponed if it exceeds a limit according to the timestamps, but not according to the heard time.
    """
    examined: int = 0
    """The number of rollouts that were examined."""


class LogTime:
    """The relation between the timestamps of the log and the heard time of one process.

    Only one thread may use an object of this class.

    Args:
        elapsed: the elapsed time when the store was opened.
        longest_step: the largest step of the elapsed time that does not count as a suspension of the process; None if
            no step counts as a suspension.
    """

    def __init__(self, elapsed: int, longest_step: int | None = None) -> None:
        self.committed: list[Commit] = []
        """The commits of this process that `advance` has not processed yet."""
        self.heard = 0
        """The heard time at the last advance."""
        self.is_lost = False
        """Whether the database is unavailable. No attempt counts as overdue while this is True."""
        self.sweeping = Sweeping()
        self._elapsed = elapsed // 1_000
        self._longest_step = longest_step
        self._stretches: list[_Stretch] = []
        self._last_stamp = 0
        """The greatest timestamp of the log at the last observation."""
        self._opened_stamp = 0
        self._pauses: list[tuple[int, int]] = [(0, _FOREVER)]
        """The heard time and the length of each pause. The heard time does not change during a pause."""
        self._available = (self._elapsed, 0)
        """The elapsed time and the heard time when the database was last available."""
        self._lead = -_FOREVER
        """The largest difference between a timestamp and the heard time at which it was recorded."""
        self._signs: dict[str, tuple[int, int, int]] = {}
        """By attempt id: timestamp and time of the last heartbeat, and the heard time at which it was observed."""
        self._offsets: tuple[int, int] | None = None
        """The smallest and the largest difference between the wall clock and the elapsed time."""
        self._doubt = 0
        """The largest known error of the clocks, by which the time in a heartbeat may be wrong."""
        self._began = (0, 0)
        """The heard time and the wall-clock time when the current batch began."""
        self.waits: dict[object, int] = {}
        """The elapsed time in nanoseconds at which each current wait for the database began, by its operation."""
        self._settled = -_FOREVER
        """The heard time before which no attempt is overdue."""
        self._written = self._elapsed
        """The elapsed time at which the database was last known to accept writes."""

    def advance(self, elapsed: int) -> None:
        """Process the new commits of this process, and set the elapsed time.

        The heard time advances too, unless the process was suspended or the database is unavailable.
        """
        committed, self.committed = self.committed, []
        for began, ended, now, last_before, last_stamp, beats in committed:
            self._pass_until(began // 1_000)
            self._begin(began // 1_000, last_before, now)
            self._pass_until(ended // 1_000)
            self._commit(last_stamp, beats)
        self._pass_until(elapsed // 1_000)

    def open(self, elapsed: int, last_stamp: int, last_written: int) -> None:
        """Record the state of the log when the store is opened.

        Args:
            elapsed: the elapsed time.
            last_stamp: the greatest timestamp of the log.
            last_written: the time of the last known commit without an event; 0 if there is none.
        """
        self.advance(elapsed)
        self._last_stamp = last_stamp
        self._opened_stamp = max(last_stamp, last_written)
        self._observe(self._opened_stamp, self.heard)

    def begin(self, elapsed: int, last_stamp: int, now: int) -> None:
        """Record the state of the log at the beginning of a batch, while no other process can write.

        Args:
            elapsed: the elapsed time.
            last_stamp: the greatest timestamp of the log.
            now: the time of the wall clock from which the timestamps come.
        """
        self.advance(elapsed)
        self._begin(elapsed // 1_000, last_stamp, now)

    def available(self, elapsed: int, last_stamp: int) -> None:
        """Record that the database was read, and the greatest timestamp of the log.

        A read does not end the state `is_lost`; only a commit does.
        """
        self.advance(elapsed)
        if not self.is_lost:
            self._available = self._elapsed, self.heard
        self._observe(last_stamp, self.heard)

    def wait(self, operation: object, elapsed: int) -> None:
        """Record that an operation begins to wait for the database.

        If the wait is longer than `SHORT_WAIT`, the heard time stops until `resume`. A wait has no effect if no step of
        the elapsed time counts as a suspension.

        Args:
            operation: `WRITE`, or an object that stands for one read.
            elapsed: the elapsed time.
        """
        self.waits[operation] = elapsed

    def resume(self, operation: object, elapsed: int) -> None:
        """Record the end of a wait. If the wait was longer than `SHORT_WAIT`, the rest is a pause."""
        if elapsed - self.waits.get(operation, elapsed) > SHORT_WAIT:
            # The heard time must advance while the wait still limits it. Commits may shorten the wait of a read.
            self.advance(elapsed)
            self._pause_for_wait(elapsed - self.waits[operation])
        self.waits.pop(operation, None)

    def lose(self, elapsed: int) -> None:
        """Record that the database is unavailable. The pause begins when the database was last available."""
        self.advance(elapsed)
        if not self.is_lost:
            self.is_lost = True
            self.heard = self._available[1]

    def reach(self, stamp: int) -> None:
        """Record a timestamp that a process has written. `horizon` then covers the checks that depend on it."""
        self._lead = max(self._lead, stamp - self.heard)

    def _pass_until(self, elapsed: int) -> None:
        passed = elapsed - self._elapsed
        if passed <= 0:
            return
        previous, self._elapsed = self._elapsed, elapsed
        if self.is_lost:
            return
        if self._longest_step is not None and passed > self._longest_step:
            self._pause(passed)
        elif self._longest_step is not None and self.waits:
            self.heard += max(0, min(elapsed, min(self.waits.values()) // 1_000 + _SHORT_WAIT) - previous)
        else:
            self.heard += passed

    def _begin(self, elapsed: int, last_stamp: int, now: int) -> None:
        if last_stamp < self._last_stamp:
            # The log was replaced, for example by a restored backup.
            self._stretches.clear()
            self._signs.clear()
            self._lead = -_FOREVER
            self._opened_stamp = last_stamp
            self._pause(_FOREVER)
        self._last_stamp = last_stamp
        self._observe(last_stamp, self.heard)
        offset = now - elapsed
        low, high = self._offsets or (offset, offset)
        self._offsets = low, high = min(low, offset), max(high, offset)
        self._doubt = max(self._doubt, last_stamp - now, high - low)
        self._began = self.heard, now

    def _commit(self, last_stamp: int, beats: Beats) -> None:
        if self.is_lost:
            self.is_lost = False
            self._pause(self._elapsed - self._available[0])
        self._available = self._elapsed, self.heard
        self._written = self._elapsed
        # A commit shows that the database accepts writes, even if a read still waits.
        for operation, began in self.waits.items():
            if operation is not WRITE and began // 1_000 < self._elapsed:
                self.waits[operation] = self._elapsed * 1_000
                self._pause_for_wait(self._elapsed * 1_000 - began)
        self._last_stamp = last_stamp
        self._observe(last_stamp, self._heard_in_batch(last_stamp))
        for attempt_id, (stamp, sign) in beats.items():
            self._note_sign(attempt_id, stamp, sign, self._heard_in_batch(stamp))

    def _observe(self, stamp: int, heard: int) -> None:
        stretches = self._stretches
        if not stretches:
            stretches.append(_Stretch(stamp, heard, stamp, heard))
            self._lead = max(self._lead, stamp - heard)
            return
        last = stretches[-1]
        if stamp <= last.last_stamp:
            return
        is_near = stamp - last.last_stamp <= _NEAR and heard - last.last_heard <= _NEAR
        if is_near and abs((stamp - last.first_stamp) - (heard - last.first_heard)) <= _TOLERANCE:
            last.last_stamp, last.last_heard = stamp, max(heard, last.last_heard)
        else:
            stretches.append(_Stretch(stamp, heard, stamp, heard))
            if len(stretches) > _MAX_STRETCHES:
                del stretches[1:-1:2]
        self._lead = max(self._lead, stamp - heard)

    def _heard_in_batch(self, stamp: int) -> int:
        """Return the heard time that corresponds to a timestamp of the current batch.

        If commands follow each other closely, their timestamps are a few microseconds ahead of the clock.
        """
        heard, now = self._began
        return heard + stamp - now if 0 < stamp - now <= _TOLERANCE else heard

    def _note_sign(self, attempt_id: str, stamp: int, sign: int, heard: int) -> None:
        self._signs.pop(attempt_id, None)
        self._signs[attempt_id] = stamp, sign, heard
        self._lead = max(self._lead, stamp - heard)
        if len(self._signs) > _MAX_SIGNS:
            for oldest in list(self._signs)[: _MAX_SIGNS // 2]:
                del self._signs[oldest]

    def _pause(self, length: int) -> None:
        self._pauses.append((self.heard, length))
        if len(self._pauses) > _MAX_PAUSES:
            # The shorter of the two oldest pauses is removed, because long pauses matter for more limits.
            del self._pauses[0 if self._pauses[0][1] <= self._pauses[1][1] else 1]
        if length >= _SETTLING and self.heard >= self._settled + _SETTLING_AGAIN:
            self._settled = self.heard + _SETTLING

    def _pause_for_wait(self, nanoseconds: int) -> None:
        """Record a wait, without its beginning, as a pause. It may be part of a pause that is recorded already."""
        length = nanoseconds // 1_000 - _SHORT_WAIT
        heard, recorded = self._pauses[-1]
        if self._longest_step is None or length <= 0:
            return
        if heard != self.heard:
            self._pause(length)
        elif length > recorded:
            self._pauses.pop()
            self._pause(length)

    @property
    def horizon(self) -> int:
        """A timestamp that is later than the next check of every overdue attempt."""
        return self.heard + self._lead + _TOLERANCE

    @property
    def settling(self) -> int:
        """The heard time that must pass before an attempt can be overdue, because a pause has just ended.

        0 or negative if an attempt can be overdue now.
        """
        return self._settled - self.heard

    def idle_for(self, elapsed: int) -> int:
        """Return the time since the database was last known to accept a write."""
        return elapsed // 1_000 - self._written

    def accepted(self, elapsed: int) -> None:
        """Record that the database accepts writes."""
        self._written = max(self._written, elapsed // 1_000)

    def since(self, stamp: int) -> int:
        """Return the heard time since an event with this timestamp was recorded.

        If this time is not known exactly, return the shortest possible time. Before the first observation, differences
        of timestamps count as heard time.
        """
        return self.heard - self._heard_of(stamp)

    def silence(self, attempt_id: str, stamp: int, sign: int, started: int, limit: int) -> int:
        """Return the heard time for which an attempt has been silent.

        Args:
            attempt_id: the id of the attempt.
            stamp: the timestamp at which the last sign of life was recorded.
            sign: the time of this sign of life, which its sender may have chosen.
            started: the timestamp of the start of the attempt.
            limit: the limit with which the caller compares the result. If a pause was long relative to this limit, the
                silence begins after the pause.
        """
        heard = self._heard_of_sign(attempt_id, stamp, sign)
        resumed = next(at for at, length in reversed(self._pauses) if length * _SHORT_PAUSES >= limit)
        silence = self.heard - max(heard, resumed)
        if sign > stamp:
            return min(silence, self.heard + self._lead - sign)
        if resumed > heard or started <= self._opened_stamp:
            # The clocks may have changed since the start of the attempt, so the time of the sign may be wrong.
            return silence
        return silence + max(0, self._heard_before(heard, stamp - sign) - self._doubt)

    def _heard_before(self, heard: int, length: int) -> int:
        """Return the heard part of an interval that ends at the heard time `heard` and has the length `length`."""
        counted = 0
        for at, pause in reversed(self._pauses):
            if at <= heard:
                between = heard - at
                # The first pause is the time before this process opened the store. The time in a
                # heartbeat may be earlier than that.
                if length <= between or pause == _FOREVER:
                    break
                counted += between
                length -= between + pause
                heard = at
                if length <= 0:
                    return counted
        return counted + length

    def _heard_of(self, stamp: int) -> int:
        """Return the latest heard time at which an event with this timestamp may have been recorded."""
        stretches = self._stretches
        index = bisect_right(stretches, stamp, key=attrgetter("first_stamp")) - 1
        if index < 0:
            return stretches[0].first_heard - (stretches[0].first_stamp - stamp)
        stretch = stretches[index]
        if stamp <= stretch.last_stamp:
            return max(stretch.first_heard, stretch.last_heard - (stretch.last_stamp - stamp))
        return stretches[index + 1].first_heard if index + 1 < len(stretches) else self.heard

    def _heard_of_sign(self, attempt_id: str, stamp: int, sign: int) -> int:
        noted = self._signs.get(attempt_id)
        if noted is not None and noted[:2] == (stamp, sign):
            return noted[2]
        if stamp <= self._stretches[-1].last_stamp:
            return self._heard_of(stamp)
        # Another process recorded this heartbeat. A heartbeat is not an event, so the log does not show when it was
        # recorded.
        self._note_sign(attempt_id, stamp, sign, self.heard)
        return self.heard
