"""Arguments of another kind, where a store has a log: refused in the same words beside the database and over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from store.client import HTTPStore
from store.errors import Invalid
from store.interface.store import Store
from store.testing.contract.wrong_kinds import NOT_INTEGER, NOT_TEXT, NOT_TEXTS

NO_MOMENT: Sequence[Any] = ("1", True, 1.5, b"1", [1], object())


async def _tail(store: Any, **arguments: Any) -> None:
    async for _ in store.log.tail(**arguments):
        pass


CALLS: list[tuple[str, Callable[[Any, str, Any], Awaitable[Any]], Sequence[Any]]] = [
    ("rollout_id", lambda store, _, value: store.log.history(value), (*NOT_TEXT, None)),
    ("after", lambda store, ro, value: store.log.history(ro, after=value), (*NOT_INTEGER, None, -1)),
    ("limit", lambda store, ro, value: store.log.history(ro, limit=value), (*NOT_INTEGER, None, -2)),
    ("as_at", lambda store, ro, value: store.log.history(ro, as_at=value), NO_MOMENT),
    ("after", lambda store, _, value: _tail(store, after=value), NOT_TEXT),
    ("types", lambda store, _, value: _tail(store, types=value), NOT_TEXTS),
    ("rollout_id", lambda store, _, value: _tail(store, rollout_id=value), NOT_TEXT),
    ("seal", lambda store, _, value: store.log.verify(value), (7, True, ["x"], {"a": 1}, object())),
    ("at", lambda store, ro, value: store.get_rollout_by_id(ro, at=value), NOT_INTEGER),
    ("at", lambda store, ro, value: store.query_attempts(ro, at=value), NOT_INTEGER),
    ("at", lambda store, ro, value: store.query_spans(ro, at=value), NOT_INTEGER),
    ("as_at", lambda store, _, value: store.query_rollouts(as_at=value), NO_MOMENT),
    ("as_at", lambda store, _, value: store.statistics(as_at=value), NO_MOMENT),
    ("as_at", lambda store, _, value: store.get_latest_resources(as_at=value), NO_MOMENT),
]


async def test_a_wrong_kind_is_refused_alike_beside_the_store_and_over_http(store: HTTPStore, behind: Store) -> None:
    ro = (await behind.start_rollout(1)).rollout_id
    for field, call, values in CALLS:
        for value in values:
            with pytest.raises(Invalid) as beside:
                await call(behind, ro, value)
            with pytest.raises(Invalid) as over_http:
                await call(store, ro, value)
            assert beside.value.field == over_http.value.field == field, (field, value)
            assert str(beside.value) == str(over_http.value)
