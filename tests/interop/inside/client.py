"""Agent-lightning's client and the server at `--url`: all methods, and the client's specific behaviour."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio

import aiohttp
from agentlightning import LightningStoreClient as Store
from agentlightning.types import Span

from tests.interop.inside import methods
from tests.interop.inside.claims import arguments, claims_of, hold, stay_on_this_machine


async def an_id_that_does_not_exist_is_an_error_of_status_400(store: Store) -> None:
    once = Store(store.server_address_root, retry_delays=())
    calls = [
        once.start_attempt("ro-none"),
        once.update_rollout("ro-none", status="failed"),
        once.update_attempt("ro-none", "latest", status="failed"),
        once.add_span(Span.from_attributes(attributes={}, rollout_id="ro-none", attempt_id="at-none")),
    ]
    try:
        for refused in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(refused, aiohttp.ClientResponseError), refused
            assert refused.status == 400
    finally:
        await once.close()


async def reads_of_missing_things_return_none(store: Store) -> None:
    once = Store(store.server_address_root, retry_delays=())
    try:
        assert await once.get_rollout_by_id("ro-none") is None
        assert await once.get_latest_attempt("ro-none") is None
        assert await once.get_resources_by_id("rs-none") is None
        assert await once.get_worker_by_id("w-none") is None
        assert len(await once.query_attempts("ro-none")) == 0
        assert len(await once.query_spans("ro-none")) == 0
    finally:
        await once.close()


async def a_field_that_does_not_exist_cannot_be_sorted_by(store: Store) -> None:
    (refused,) = await asyncio.gather(store.query_rollouts(sort_by="colour"), return_exceptions=True)
    assert isinstance(refused, aiohttp.ClientResponseError), refused
    assert refused.status == 400


async def null_where_there_must_be_a_value_is_refused(store: Store) -> None:
    rollout = await store.start_rollout("task")
    calls = [
        store.update_rollout(rollout.rollout_id, status=None),
        store.update_rollout(rollout.rollout_id, config=None),
        store.update_attempt(rollout.rollout_id, "latest", metadata=None),
        store.update_worker("w-null", heartbeat_stats=None),
    ]
    # One of them the client itself cannot send.
    for refused in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(refused, (aiohttp.ClientResponseError, AttributeError, TypeError)), refused
        assert getattr(refused, "status", 400) == 400


async def the_client_returns_the_url_for_traces(store: Store) -> None:
    assert store.capabilities["otlp_traces"] is True
    assert store.otlp_traces_endpoint() == f"{store.server_address_root}/v1/traces"


async def the_client_itself_refuses_long_waits(store: Store) -> None:
    (refused,) = await asyncio.gather(store.wait_for_rollouts(rollout_ids=[], timeout=1.0), return_exceptions=True)
    assert isinstance(refused, ValueError), refused


async def _main() -> None:
    options = arguments()
    store = Store(options.url)
    try:
        await hold([*claims_of(methods.__name__), *claims_of(__name__)], store, options)
    finally:
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(_main())
