"""The panel of scanners on the overview: the share of matches in the last step or 300 s, and before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from store.dashboard.views.figure_cache import FigureCache
from store.db.dialect import ReadSession
from store.db.queries.overview import RECENT
from store.db.queries.scan_figures import RecentRate, recent_rates
from store.db.queries.step_totals import StepTotals
from store.runtime.clock import MICROSECONDS

_STEPS_BEFORE = 5


@dataclass(frozen=True, slots=True)
class ScanPanel:
    """The results of scanners for recent rollouts, compared with those before them."""

    step: int | None
    """The last step whose rollouts have all ended; None in a store without such a step. Then the last 300 s count."""
    first_step_before: int | None
    """The first of the steps with which the step is compared; None if there are none, or without a step."""
    last_step_before: int | None
    since: float | None
    """The start of the last 300 s, in seconds since the epoch; None with a step."""
    rates: Sequence[RecentRate]
    """The rates of the versions of scanners with recent results, by name and version."""


async def scan_panel(
    session: ReadSession, cache: FigureCache, totals: Sequence[StepTotals], now: int
) -> ScanPanel | None:
    """Return the recent rates of all scanners; None if no scanner has recent results.

    Args:
        session: a session that reads one state of the store.
        cache: the cache of the store.
        totals: the totals of all steps.
        now: the time in µs since the epoch.
    """
    steps = {part.step for part in totals if part.step is not None}
    complete = sorted(steps - {part.step for part in totals if part.ended < part.rollouts})
    if complete:
        last, before = complete[-1], complete[-1 - _STEPS_BEFORE : -1]
        first_before, last_before = (before[0], before[-1]) if before else (last, last - 1)
        work = partial(recent_rates, recent=(last, last), before=(first_before, last_before), by="step")
        rates = await cache.read(session, "recent scans", work)
        panel = ScanPanel(last, first_before if before else None, last_before if before else None, None, rates)
    else:
        since = now - RECENT
        rates = await recent_rates(session, (since, now), (since - RECENT, since - 1), "time")
        panel = ScanPanel(None, None, None, since / MICROSECONDS, rates)
    return panel if rates else None
