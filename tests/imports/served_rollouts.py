"""Rollouts on a server of the Agent-lightning protocol, and the check of their import.

`fill` also runs in the environment of Agent-lightning, so this module imports nothing.
"""

from __future__ import annotations

from typing import Any

REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}


def _span(kinds: Any, rollout: Any, number: int, name: str = "step", **attributes: Any) -> Any:
    return kinds.Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        name=name,
        attributes=attributes,
        start_time=1000.0 + number,
        end_time=1000.5 + number,
    )


async def fill(store: Any, kinds: Any) -> dict[str, str]:
    """Make rollouts that ended in each way, and two that did not; return their ids by name.

    Args:
        store: a store of Agent-lightning or of ours.
        kinds: a module with the classes of its objects.
    """
    prompt, llm = kinds.PromptTemplate, kinds.LLM
    published = await store.add_resources({"p": prompt(template="a {x}", engine="f-string")})
    model = llm(endpoint="http://localhost:1", model="m", sampling_parameters={"temperature": 0.5})
    await store.update_resources(published.resources_id, {"p": prompt(template="b {x}", engine="f-string"), "l": model})
    done = await store.start_rollout({"q": 1}, mode="train", metadata={"k": [1, 2.5]}, worker_id="w1")
    for number in (3, 7):
        await store.add_span(_span(kinds, done, number, index=number, flags=[True, False]))
    await store.add_span(_span(kinds, done, 9, "agentlightning.annotation", **REWARD))
    await store.update_attempt(done.rollout_id, done.attempt.attempt_id, status="succeeded", metadata={"m": 1})
    config = kinds.RolloutConfig(max_attempts=2, retry_condition=["failed"])
    retried = await store.enqueue_rollout("text", config=config)
    for number, status in enumerate(("failed", "succeeded"), 1):
        claim = await store.dequeue_rollout("w2")
        await store.add_span(_span(kinds, claim, number))
        await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status=status)
    cancelled = await store.start_rollout(None, mode="val")
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    never = await store.enqueue_rollout("never")
    await store.update_rollout(never.rollout_id, status="cancelled")
    queued = await store.enqueue_rollout({"waiting": True})
    running = await store.start_rollout([1])
    rollouts = {"done": done, "retried": retried, "cancelled": cancelled, "never": never}
    rollouts |= {"queued": queued, "running": running}
    return {name: rollout.rollout_id for name, rollout in rollouts.items()} | {"resources": published.resources_id}


async def check(store: Any, ids: dict[str, str]) -> None:
    """Check that a store contains the rollouts that ended, as they were."""
    rollouts = {rollout.metadata["rollbook.source"]["key"]: rollout for rollout in await store.query_rollouts()}
    assert rollouts.keys() == {ids["done"], ids["retried"], ids["cancelled"]}
    done, retried, cancelled = (rollouts[ids[name]] for name in ("done", "retried", "cancelled"))
    assert (done.input, done.mode, done.status, done.reward) == ({"q": 1}, "train", "succeeded", 0.5)
    assert done.metadata["k"] == [1, 2.5]
    assert done.resources_id == ids["resources"]
    resources = (await store.get_resources_by_id(ids["resources"])).resources
    assert (resources["p"].template, resources["l"].sampling_parameters) == ("b {x}", {"temperature": 0.5})
    assert done.attempt.metadata["m"] == 1
    assert done.attempt.metadata["rollbook.source"].keys() >= {"attempt_id", "start_time", "end_time", "worker_id"}
    spans = await store.query_spans(done.rollout_id)
    assert [(span.sequence_id, span.span_id, span.start_time) for span in spans] == [
        (number, f"{number:016x}", 1000.0 + number) for number in (3, 7, 9)
    ]
    assert spans[0].attributes == {"index": 3, "flags": [True, False]}
    assert spans[2].attributes == REWARD
    attempts = await store.query_attempts(retried.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
    assert [(span.sequence_id, span.attempt_id) for span in await store.query_spans(retried.rollout_id)] == [
        (number, attempt.attempt_id) for number, attempt in enumerate(attempts, 1)
    ]
    assert (cancelled.input, cancelled.mode, cancelled.status) == (None, "val", "cancelled")
    assert cancelled.attempt.metadata["rollbook.source"]["status"] == "preparing"
    assert await store.dequeue_rollout("runner") is None
