"""Calls of a store with `await`, as a user writes them."""

import asyncio
from collections.abc import Mapping
from typing import assert_type

import rollbook


async def main() -> None:
    async with rollbook.open_store("sqlite:///run.db") as opened:
        assert_type(opened, rollbook.Store)
        config = rollbook.RolloutConfig(max_attempts=2, retry_condition=["failed"])
        queued = await opened.enqueue_rollout({"question": "2 + 2"}, mode="train", config=config)
        assert_type(queued, rollbook.Rollout)
        claimed = await opened.dequeue_rollout(worker_id="worker-1")
        assert_type(claimed, rollbook.AttemptedRollout | None)
        assert claimed is not None
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        number = await opened.get_next_span_sequence_id(rollout_id, attempt_id)
        assert_type(number, int)
        span = rollbook.Span.from_attributes(
            attributes={"question": "2 + 2"}, sequence_id=number, rollout_id=rollout_id, attempt_id=attempt_id
        )
        await opened.add_span(span)
        await opened.update_attempt(rollout_id, attempt_id, status="succeeded")
        ended = await opened.wait_for_rollouts(rollout_ids=[rollout_id], timeout=1.0)
        print(
            [ended_rollout.status for ended_rollout in ended],
            [stored_span.name for stored_span in await opened.query_spans(rollout_id)],
        )
        page = await opened.find_rollouts(rollbook.RolloutQuery(limit=10))
        assert_type(page, rollbook.PaginatedResult[rollbook.Rollout | rollbook.AttemptedRollout])
        report = await opened.log.verify()
        assert_type(report, rollbook.VerifyReport)
        async for event in opened.log.tail():
            assert_type(event, rollbook.LoggedEvent)
        await opened.annotations.annotate(rollout_id, add_labels=["good"])
        try:
            await opened.update_rollout("ro-0", status="cancelled")
        except rollbook.NotFound as error:
            print(error.kind)


async def with_mappings(opened: rollbook.Store, metadata: Mapping[str, object]) -> None:
    prompts = {"prompt": rollbook.PromptTemplate(template="{question}", engine="f-string")}
    await opened.add_resources(prompts)
    published = await rollbook.Plan("climb").publish(opened, prompts, step=0)
    await opened.enqueue_rollout("task", resources_id=published.resources_id, metadata=metadata)
    rollbook.Trainer(initial_resources=prompts)


async def until_closed() -> None:
    longer = await rollbook.open_store("memory://")
    assert_type(longer, rollbook.Store)
    async with await rollbook.open_store("memory://") as opened:
        assert_type(opened, rollbook.Store)
    await longer.close()


async def over_http(url: str) -> None:
    client = rollbook.LightningStoreClient(url)
    try:
        print(await client.statistics())
    finally:
        await client.close()
    async with await rollbook.HTTPStore.open(url) as opened:
        assert_type(await opened.query_workers(), rollbook.PaginatedResult[rollbook.Worker])


if __name__ == "__main__":
    asyncio.run(main())
