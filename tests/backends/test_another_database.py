"""Another SQL database is one `Dialect` that imports only the port and passes the contract."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import Conflict, Invalid, NotFound, RolloutConfig, Span, Store, open_store
from store.testing import ManualClock
from store.testing.contract import StoreContract, rollout_helpers
from tests.backends import plain_sqlite
from tests.backends.core import CORE


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite-plain://{tmp_path / 'plain.db'}"


@pytest.fixture
async def plain(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as opened:
        yield opened


@pytest.mark.repeat
class TestPlainSQLite(StoreContract):
    """The contract, over a database that the package does not know."""

    @pytest.fixture
    def store(self, plain: Store) -> Store:
        return plain


def test_the_core_has_promises_of_each_part_and_each_call() -> None:
    assert set(CORE) == set(StoreContract.__bases__)
    assert [name for part, names in CORE.items() for name in names if name not in vars(part)] == []
    sources = [inspect.getsource(getattr(part, name)) for part, names in CORE.items() for name in names]
    called = set(re.findall(r"\bstore\.(\w+)\(", "".join([*sources, inspect.getsource(rollout_helpers)])))
    calls = {name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction) if not name.startswith("_")}
    # The queries pass values to these. Metrics of trainers have a contract of their own, which tests/contract runs.
    assert {name for name in calls if not name.startswith("find_")} - called == {"log_metrics"}


def test_the_port_is_all_that_the_new_database_knows_of_the_others() -> None:
    source = ast.parse(Path(plain_sqlite.__file__).read_text())
    imported = {node.module for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if module and module.startswith("store.db.drivers")]
    assert plain_sqlite.PlainSQLite.__mro__[1].__module__ == "store.db.dialect"


async def test_history_the_past_and_the_log_work_without_another_line(plain: Store) -> None:
    rollout = await plain.enqueue_rollout({"question": 1}, config=RolloutConfig(max_attempts=2))
    claimed = await plain.dequeue_rollout("worker")
    assert claimed is not None
    span = Span.from_attributes(
        attributes={"agentlightning.reward.0.value": 0.5},
        rollout_id=rollout.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        sequence_id=1,
    )
    await plain.add_span(span)
    await plain.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    history = await plain.log.history(rollout.rollout_id)
    assert history[0].type == "rollout.enqueued"
    assert history[-1].data["to"] == "succeeded"
    then = await plain.get_rollout_by_id(rollout.rollout_id, as_at=history[0].position)
    assert then is not None
    assert then.status == "queuing"
    told = [event async for event in plain.log.tail(rollout_id=rollout.rollout_id)]
    assert [event.position for event in told] == [event.position for event in history]


async def test_verify_and_rebuild_work_without_another_line(plain: Store, tmp_path: Path) -> None:
    for number in range(3):
        await plain.start_rollout(number, worker_id="worker")
    seal = await plain.log.seal(tmp_path / "seal.json")
    await plain.enqueue_rollout("later")
    report = await plain.log.verify(seal)
    assert report.ok
    assert report.rows["rollouts"] == 4
    rebuilt = await plain.log.rebuild()
    assert rebuilt.written == {}
    assert rebuilt.state_hash == report.state_hash


async def test_rollouts_remain_when_the_url_is_opened_again(url: str) -> None:
    async with await open_store(url) as first:
        rollout = await first.enqueue_rollout("kept")
    async with await open_store(url, create=False) as again:
        assert await again.get_rollout_by_id(rollout.rollout_id) == rollout


async def test_errors_of_the_store_reach_the_caller_as_on_every_database(plain: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="ro-missing not found"):
        await plain.start_attempt("ro-missing")
    await plain.enqueue_rollout(1, metadata={"rollbook.key": "a"})
    with pytest.raises(Conflict):
        await plain.enqueue_rollout(2, metadata={"rollbook.key": "a"})
    with pytest.raises(NotFound):
        await open_store(f"sqlite-plain://{tmp_path / 'none.db'}", create=False)


async def test_unknown_scheme_is_refused_with_the_registered_schemes() -> None:
    with pytest.raises(Invalid, match="sqlite-plain"):
        await open_store("duckdb:///run.db")
