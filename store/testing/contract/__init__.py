"""Contract of stores: tests that every store must pass. Each test checks one promise.

To test a store, subclass `StoreContract` in a test module and define two fixtures. The fixture `clock` must return a
`store.testing.ManualClock`. The fixture `store` must return an open, empty store that uses this clock. If the store has
the argument `scan_debounce_seconds`, its value must be 0:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def clock(self) -> ManualClock:
            return ManualClock()

        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
            async with MyStore(clock=clock) as store:
                yield store

The tests require pytest and pytest-asyncio. Each class of the other modules tests a part of the contract. Optional
features are not part of `StoreContract`. `AnnotationsContract` contains the tests for stores that support labels and
notes, `RewardQueriesContract` those for stores with a log that return rewards, `ScoresContract` those for stores
with versions of rewards, `TrainerMetricsContract` those for stores with metrics of trainers, and `ScannersContract`
those for stores with scanners.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# pytest explains failed assertions only in modules that it rewrites. By default, it rewrites only test modules. So the
# modules of the contract are registered before they are imported.
pytest.register_assert_rewrite(*[f"{__name__}.{module.name}" for module in iter_modules(__path__)])

from store.testing.contract.annotations import AnnotationsContract  # noqa: E402 - rewritten above
from store.testing.contract.attempt_errors import AttemptErrorsContract  # noqa: E402 - rewritten above
from store.testing.contract.attempts import AttemptsContract, RolloutUpdatesContract  # noqa: E402 - rewritten above
from store.testing.contract.bad_input import BadInputContract  # noqa: E402
from store.testing.contract.closing import ClosingContract  # noqa: E402
from store.testing.contract.concurrency import ConcurrencyContract  # noqa: E402
from store.testing.contract.finishing import FinishingContract  # noqa: E402
from store.testing.contract.plan_keys import PlanKeyContract  # noqa: E402
from store.testing.contract.queries import QueriesContract  # noqa: E402
from store.testing.contract.queue import QueueContract  # noqa: E402
from store.testing.contract.resources import ResourcesContract  # noqa: E402
from store.testing.contract.results import ResultsContract  # noqa: E402
from store.testing.contract.retries import RetriesContract  # noqa: E402
from store.testing.contract.reward_queries import RewardQueriesContract  # noqa: E402
from store.testing.contract.scanners import ScannersContract  # noqa: E402
from store.testing.contract.scores import ScoresContract  # noqa: E402
from store.testing.contract.span_numbers import SpanNumbersContract  # noqa: E402
from store.testing.contract.span_queries import SpanQueriesContract  # noqa: E402
from store.testing.contract.spans import SpansContract  # noqa: E402
from store.testing.contract.statistics import StatisticsContract  # noqa: E402
from store.testing.contract.trainer_metrics import TrainerMetricsContract  # noqa: E402
from store.testing.contract.waiting import WaitingContract, WaitingForWorkContract  # noqa: E402
from store.testing.contract.watchdog import WatchdogContract  # noqa: E402
from store.testing.contract.workers import WorkersContract  # noqa: E402
from store.testing.contract.wrong_kinds import WrongKindsContract  # noqa: E402

__all__ = [
    "AnnotationsContract",
    "AttemptErrorsContract",
    "AttemptsContract",
    "BadInputContract",
    "ClosingContract",
    "ConcurrencyContract",
    "FinishingContract",
    "PlanKeyContract",
    "QueriesContract",
    "QueueContract",
    "ResourcesContract",
    "ResultsContract",
    "RetriesContract",
    "RewardQueriesContract",
    "RolloutUpdatesContract",
    "ScannersContract",
    "ScoresContract",
    "SpanNumbersContract",
    "SpanQueriesContract",
    "SpansContract",
    "StatisticsContract",
    "StoreContract",
    "TrainerMetricsContract",
    "WaitingContract",
    "WaitingForWorkContract",
    "WatchdogContract",
    "WorkersContract",
    "WrongKindsContract",
]


class StoreContract(
    QueueContract,
    PlanKeyContract,
    RolloutUpdatesContract,
    AttemptsContract,
    AttemptErrorsContract,
    FinishingContract,
    RetriesContract,
    WatchdogContract,
    SpansContract,
    SpanNumbersContract,
    WorkersContract,
    ResourcesContract,
    QueriesContract,
    SpanQueriesContract,
    WaitingContract,
    WaitingForWorkContract,
    StatisticsContract,
    ResultsContract,
    BadInputContract,
    WrongKindsContract,
    ConcurrencyContract,
    ClosingContract,
):
    """The whole contract without optional features."""
