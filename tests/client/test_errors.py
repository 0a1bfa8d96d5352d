"""Errors have the same class, message and fields after the transfer to a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from store.client import HTTPStore
from store.errors import Invalid, StoreError
from store.interface.delegating import DelegatingStore
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, RolloutConfig
from store.testing.samples import make_span
from tests.client.served import Served
from tests.errors import EXAMPLES


class Failing(DelegatingStore):
    """A store that answers every question about its numbers with the same error."""

    def __init__(self, inner: Store, error: StoreError) -> None:
        self._inner = inner
        self._error = error

    @property
    def target(self) -> Store:
        return self._inner

    @property
    def capabilities(self) -> Any:
        return self._inner.capabilities

    async def statistics(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: str(type(error).__name__))
async def test_an_error_of_the_store_is_the_same_error_at_the_client(
    server: Served, behind: Store, error: StoreError
) -> None:
    with server.serving(Failing(behind, error)) as url:
        async with HTTPStore(url, retry_seconds=0.1) as store:
            with pytest.raises(type(error)) as raised:
                await store.statistics()
    same = raised.value
    assert type(same) is type(error)
    assert str(same) == str(error)
    assert same.args == error.args
    facts = {name: value for name, value in vars(same).items() if name != "__notes__"}
    assert facts == vars(error)
    assert (same.retryable, same.status) == (error.retryable, error.status)


def test_every_class_is_tried() -> None:
    from store import errors

    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


async def test_a_refusal_reads_the_same_over_http_as_beside_the_store(store: HTTPStore, behind: Store) -> None:
    rollout = await behind.start_rollout(1, metadata={"rollbook.key": "k"})
    ro = rollout.rollout_id
    calls: list[Callable[[Any], Awaitable[object]]] = [
        lambda target: target.start_attempt("ro-none"),
        lambda target: target.update_rollout("ro-none", status="running"),
        lambda target: target.update_rollout("search", status="running"),
        lambda target: target.update_attempt("ro-none", "latest", status="running"),
        lambda target: target.update_attempt(ro, "at-none", status="running"),
        lambda target: target.update_attempt(ro, "search", status="running"),
        lambda target: target.add_span(make_span(rollout.attempt, rollout_id="ro-none")),
        lambda target: target.add_span(make_span(rollout.attempt, attempt_id="at-none")),
        lambda target: target.add_many_spans([make_span(rollout.attempt, rollout_id="ro-none")]),
        lambda target: target.enqueue_rollout(2, metadata={"rollbook.key": "k"}),
        lambda target: target.enqueue_rollout(float("nan")),
        lambda target: target.enqueue_rollout({"a": [1, {"b": "\ud800"}]}),
        lambda target: target.enqueue_rollout({"a": b"bytes"}),
        lambda target: target.enqueue_rollout(1, metadata={"rollbook.step": "four"}),
        lambda target: target.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=float("inf"))),
        lambda target: target.enqueue_rollout("x" * (17 << 20)),
        lambda target: target.enqueue_many_rollouts([EnqueueRolloutRequest(input=1, metadata={"a": 2**70})]),
        lambda target: target.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)] * 10_001),
        lambda target: target.add_many_spans([make_span(rollout.attempt, name="x" * 2000)] * 2),
        lambda target: target.dequeue_rollout("x" * 600),
        lambda target: target.dequeue_rollout(wait_seconds=float("nan")),
        lambda target: target.wait_for_rollouts([ro], timeout=float("nan")),
        lambda target: target.query_rollouts(limit=-2),
        lambda target: target.query_rollouts(offset=-1),
        lambda target: target.query_rollouts(sort_order="upwards"),
        lambda target: target.query_rollouts(filter_logic="xor"),
        lambda target: target.query_rollouts(status_in="running"),
        lambda target: target.query_rollouts(as_at=-1),
        lambda target: target.query_rollouts(as_at=1.5),
        lambda target: target.query_rollouts(as_at="5"),
        lambda target: target.get_rollout_by_id(ro, at=99),
        lambda target: target.get_rollout_by_id(ro, at=1, as_at=1),
        lambda target: target.log.history("ro-none"),
    ]
    for call in calls:
        with pytest.raises(StoreError) as beside:
            await call(behind)
        with pytest.raises(StoreError) as over_http:
            await call(store)
        assert type(over_http.value) is type(beside.value)
        assert str(over_http.value) == str(beside.value)
        assert vars(over_http.value) == vars(beside.value)


async def test_invalid_argument_is_refused_by_the_name_of_its_field(store: HTTPStore) -> None:
    wrong: Any = "practice"
    for call in (store.enqueue_rollout(1, mode=wrong), store.start_rollout(1, mode=wrong)):
        with pytest.raises(Invalid) as refused:
            await call
        assert refused.value.field == "mode"


async def test_unexpected_server_error_is_raised_without_its_traceback(server: Served, behind: Store) -> None:
    class Broken(Failing):
        async def statistics(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("inside")

    with server.serving(Broken(behind, StoreError())) as url:
        async with HTTPStore(url, retry_seconds=0) as store:
            with pytest.raises(StoreError, match="500") as raised:
                await store.statistics()
    assert "inside" not in str(raised.value)
