"""Algorithm that learns nothing. It runs every task and logs the results, to check the other components."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Literal

from store.errors import Incompatible, Invalid, Unsupported
from store.training.algorithms.algorithm import Dataset, FastAlgorithm
from store.training.algorithms.plan import STEADY
from store.training.algorithms.rollout_ends import left_the_queue

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import Rollout, RolloutMode

logger = logging.getLogger("store.training.baseline")

RESOURCES_ID: Final = "default"
"""The id under which the initial resources are published."""

SpanVerbosity = Literal["keys", "key_values", "none"]


class Baseline(FastAlgorithm):
    """Algorithm that runs the training tasks, then the validation tasks. It logs attempts, spans and training data.

    Args:
        n_epochs: the number of times that each task is run.
        train_split: accepted for compatibility with Agent-lightning and not used.
        polling_interval: seconds between two reads of the queue, if the store has no log.
        max_queue_length: the number of queued rollouts above which the algorithm pauses before it enqueues the next.
        span_verbosity: the parts of a span's attributes that are logged.

    Raises:
        Invalid: `train_split` is not between 0 and 1, another number is too small, or `span_verbosity` is unknown.
    """

    def __init__(
        self,
        *,
        n_epochs: int = 1,
        train_split: float = 0.5,
        polling_interval: float = 5.0,
        max_queue_length: int = 4,
        span_verbosity: SpanVerbosity = "keys",
    ) -> None:
        if not 0 < train_split < 1:
            raise Invalid("train_split", f"{train_split} is not between 0 and 1")
        if n_epochs < 1:
            raise Invalid("n_epochs", f"{n_epochs} is below 1")
        if max_queue_length < 0:
            raise Invalid("max_queue_length", f"{max_queue_length} is below 0")
        if span_verbosity not in {"keys", "key_values", "none"}:
            raise Invalid("span_verbosity", f"{span_verbosity!r} is not one of 'keys', 'key_values' and 'none'")
        self.n_epochs = n_epochs
        self.train_split = train_split
        self.polling_interval = polling_interval
        self.max_queue_length = max_queue_length
        self.span_verbosity: SpanVerbosity = span_verbosity

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run all tasks `n_epochs` times, and return when all rollouts have ended."""
        datasets: list[tuple[RolloutMode, Dataset[Any]]] = []
        if train_dataset is not None:
            datasets.append(("train", train_dataset))
        if val_dataset is not None:
            datasets.append(("val", val_dataset))
        if not datasets:
            logger.error("there are no tasks to run; pass a train_dataset or a val_dataset")
            return
        store = self.get_store()
        if (resources := self.get_initial_resources()) is not None:
            await store.update_resources(RESOURCES_ID, resources)
        async with asyncio.TaskGroup() as watchers:
            for epoch in range(self.n_epochs):
                for mode, dataset in datasets:
                    for index in range(len(dataset)):
                        await self._wait_for_room(store)
                        rollout = await store.enqueue_rollout(dataset[index], mode=mode, config=STEADY)
                        logger.info("epoch %d, %s task %d is rollout %s", epoch, mode, index, rollout.rollout_id)
                        watchers.create_task(self._watch(store, rollout))

    async def _wait_for_room(self, store: Store) -> None:
        """Wait until no more than `max_queue_length` rollouts are queued."""
        while True:
            waiting = await store.query_rollouts(status_in=["queuing", "requeuing"], limit=1)
            if waiting.total <= self.max_queue_length:
                return
            try:
                await left_the_queue(store, waiting[0])
            except (Unsupported, Incompatible):
                await asyncio.sleep(self.polling_interval)

    async def _watch(self, store: Store, rollout: Rollout) -> None:
        """Wait until a rollout has ended, and log its results."""
        (ended,) = await store.wait_for_rollouts([rollout.rollout_id])
        logger.info("rollout %s ended with status %s", rollout.rollout_id, ended.status)
        for attempt in await store.query_attempts(rollout.rollout_id):
            spans = list(await store.query_spans(rollout.rollout_id, attempt.attempt_id))
            name = f"rollout {attempt.rollout_id}, attempt {attempt.sequence_id}"
            logger.info("%s by %s: %s, %d spans", name, attempt.worker_id, attempt.status, len(spans))
            for span in spans if self.span_verbosity != "none" else ():
                attributes: Any = span.attributes if self.span_verbosity == "key_values" else sorted(span.attributes)
                logger.info("%s, span %d %s: %s", name, span.sequence_id, span.name, attributes)
            # An attempt may leave no spans, and some adapters refuse an empty list.
            if spans and self._adapter is not None:
                try:
                    logger.info("%s adapts to %s", name, self.get_adapter().adapt(spans))
                except Exception:
                    logger.exception("%s cannot be adapted", name)
