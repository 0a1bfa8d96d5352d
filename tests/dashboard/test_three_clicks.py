"""From a failed rollout to its span, message, worker and time in at most three clicks."""

from __future__ import annotations

import pytest

from store.interface.store import Store
from store.models import AttemptError
from store.testing import ManualClock
from tests.dashboard.page_helpers import Read
from tests.server.api import Api, a_span

SPAN_ID = "00f067aa0ba902b7"
MESSAGE = "the gateway gave up after two tries"


@pytest.fixture
async def failed_id(api: Api, store: Store, clock: ManualClock) -> str:
    """The one rollout that failed, among others, and said in which span."""
    for _ in range(3):
        other = await store.start_rollout({"question": 1}, worker_id="w-other")
        await store.update_attempt(other.rollout_id, other.attempt.attempt_id, status="succeeded")
    begun = await store.start_rollout({"question": 2}, worker_id="w-that-failed")
    attempt_id = begun.attempt.attempt_id
    clock.advance(5)
    for span_id, name in (("1" * 16, "plan"), (SPAN_ID, "call the gateway")):
        span = a_span(begun.rollout_id, attempt_id, span_id, name=name)
        (await api.post("/spans", span)).ok(201)
    error = AttemptError(type="GatewayError", message=MESSAGE, span_id=SPAN_ID)
    await store.update_attempt(begun.rollout_id, attempt_id, status="failed", error=error)
    return begun.rollout_id


def tells_all(page: Read, rollout_id: str) -> bool:
    """Say whether a page shows the rollout, what its error said, who ran it, and when."""
    facts = (MESSAGE, "w-that-failed", "call the gateway")
    return all(fact in page.text for fact in facts) and rollout_id in str(page.marks) and "time" in page.tags


async def test_by_way_of_the_latest_failures(api: Api, failed_id: str) -> None:
    overview = Read((await api.get("//ui/")).body)
    assert MESSAGE in overview.text
    (span,) = [link for link in overview.links if f"span={SPAN_ID}" in link]
    assert tells_all(Read((await api.get(f"/{span}")).body), failed_id)


async def test_by_way_of_the_kinds_of_failures(api: Api, failed_id: str) -> None:
    overview = Read((await api.get("//ui/")).body)
    (kinds,) = {link for link in overview.links if link == "/ui/failures"}
    page = Read((await api.get(f"/{kinds}")).body)
    assert MESSAGE in page.text
    (span,) = {link for link in page.links if f"span={SPAN_ID}" in link}
    assert tells_all(Read((await api.get(f"/{span}")).body), failed_id)


async def test_by_way_of_the_rollouts_that_failed(api: Api, failed_id: str) -> None:
    overview = Read((await api.get("//ui/")).body)
    (listed,) = {link for link in overview.links if link == "/ui/rollouts?status=failed"}
    rollouts = Read((await api.get(f"/{listed}")).body)
    assert "GatewayError" in rollouts.text
    (one,) = {link for link in rollouts.links if link == f"/ui/rollouts/{failed_id}"}
    page = Read((await api.get(f"/{one}")).body)
    assert MESSAGE in page.text
    span = next(link for link in page.links if f"span={SPAN_ID}" in link)
    assert tells_all(Read((await api.get(f"/{span}")).body), failed_id)
