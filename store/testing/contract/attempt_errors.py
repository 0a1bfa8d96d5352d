"""Contract of the errors of attempts: errors are stored in the log, and do not reopen a rollout that has ended."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid, Unsupported
from store.interface.store import Store
from store.models import AttemptError, Rollout, RolloutConfig
from store.testing.contract.rollout_helpers import reread, started, worker_of

ERROR = AttemptError(type="LookupError", message="no such page", span_id="00f067aa0ba902b7")


class AttemptErrorsContract:
    """Tests of `update_attempt` with an error."""

    pytestmark = pytest.mark.asyncio

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    async def test_the_error_of_an_attempt_is_in_the_history_of_its_rollout(self, store: Store, status: Any) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status=status, error=ERROR)
        assert await errors_of(store, rollout) == [ERROR.model_dump()]

    async def test_an_error_needs_no_span_id(self, store: Store) -> None:
        rollout = await started(store)
        await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=AttemptError(type="spool"))
        assert await errors_of(store, rollout) == [{"type": "spool", "message": ""}]

    async def test_a_long_error_is_truncated(self, store: Store) -> None:
        rollout = await started(store)
        error = AttemptError(type="ä" * 300, message="é" * 5000)
        await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        assert await errors_of(store, rollout) == [{"type": "ä" * 200, "message": "é" * 500}]

    async def test_an_error_is_only_allowed_with_an_unsuccessful_status(self, store: Store) -> None:
        rollout = await started(store)
        without: list[dict[str, Any]] = [{}, {"status": "succeeded"}, {"status": "running"}, {"metadata": {}}]
        for arguments in without:
            with pytest.raises(Invalid, match="error: is only allowed with one of these statuses"):
                await store.update_attempt(rollout.rollout_id, "latest", **arguments, error=ERROR)
        assert await errors_of(store, rollout) == []

    async def test_none_is_not_accepted_as_an_error(self, store: Store) -> None:
        rollout = await started(store)
        nothing: Any = None
        with pytest.raises(Invalid, match="error"):
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=nothing)

    async def test_an_error_with_a_null_character_is_refused(self, store: Store) -> None:
        rollout = await started(store)
        for error in (AttemptError(type="a\0b"), AttemptError(type="a", message="\0")):
            with pytest.raises(Invalid, match="error"):
                await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)

    async def test_an_active_rollout_follows_an_attempt_that_failed_with_an_error(self, store: Store) -> None:
        for retries, expected in ((0, "failed"), (1, "requeuing")):
            config = RolloutConfig(max_attempts=1 + retries, retry_condition=["failed"])
            rollout = await store.start_rollout(1, config=config)
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=ERROR)
            assert (await reread(store, rollout)).status == expected

    @pytest.mark.parametrize("status", ["cancelled", "succeeded", "requeuing"])
    async def test_an_error_does_not_change_a_cancelled_succeeded_or_requeued_rollout(
        self, store: Store, status: Any
    ) -> None:
        config = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        rollout = await store.start_rollout(1, config=config, worker_id="w1")
        await store.update_rollout(rollout.rollout_id, status=status)
        attempt = await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=ERROR)
        assert attempt.status == "failed"
        assert (await reread(store, rollout)).status == status
        assert (await worker_of(store, "w1")).status == "idle"


async def errors_of(store: Store, rollout: Rollout) -> list[Any]:
    """Return the errors in a rollout's history. If the store has no history, the test is skipped."""
    try:
        history = await store.log.history(rollout.rollout_id)
    except Unsupported as error:
        pytest.skip(str(error))
    return [event.data["error"] for event in history if "error" in event.data]
