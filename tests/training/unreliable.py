"""A store with outages: calls reach a real store, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from store.errors import Invalid, Unavailable
from store.interface.delegating import DelegatingStore
from store.interface.finishing import finish_by_parts
from store.interface.store import Store
from store.models import Attempt, LightningStoreCapabilities, Span
from store.models.calls import ChangingCall, FinishAttemptCall

T = TypeVar("T")


class Unreliable(DelegatingStore):
    """Passes calls on, unless told to fail.

    Attributes:
        is_down: calls that write spans, or end attempts, raise `Unavailable`.
        hangs: those that write spans do not return.
        tried: how many calls that write spans were made.
        loses_answers: so many calls are done, and raise `Unavailable` all the same.
        seconds: how long they take.
        refuses: the name of spans with which a call is `Invalid`.
        batches: the names of the spans of each call that was passed on.
    """

    def __init__(self, target: Store) -> None:
        self._target = target
        self.is_down = False
        self.hangs = False
        self.tried = 0
        self.seconds = 0.0
        self.loses_answers = 0
        self.refuses: str | None = None
        self.batches: list[list[str]] = []

    @property
    def target(self) -> Store:
        """The store behind it."""
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Those of the store behind it."""
        return self._target.capabilities

    async def call(self, call: ChangingCall[T]) -> T:
        """End an attempt by the methods below, so that they fail as told."""
        if isinstance(call, FinishAttemptCall):
            return cast("T", await finish_by_parts(self, call))
        return await super().call(call)

    async def get_many_span_sequence_ids(self, *args: Any, **kwargs: Any) -> list[int]:
        """Fail as told."""
        await self._fail()
        return await super().get_many_span_sequence_ids(*args, **kwargs)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Fail as told."""
        await self._fail()
        if any(span.name == self.refuses for span in spans):
            raise Invalid("spans", "hold what is refused")
        await asyncio.sleep(self.seconds)
        self.batches.append([span.name for span in spans])
        stored = await super().add_many_spans(spans)
        if self.loses_answers:
            self.loses_answers -= 1
            raise Unavailable("the answer was lost")
        return stored

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        """Fail as told."""
        if self.is_down:
            raise Unavailable("the store was taken away")
        return await super().update_attempt(*args, **kwargs)

    async def close(self) -> None:
        """Close the store behind it."""
        await self._target.close()

    async def _fail(self) -> None:
        self.tried += 1
        while self.hangs:  # noqa: ASYNC110 - set from other threads as well
            await asyncio.sleep(0.01)
        if self.is_down:
            raise Unavailable("the store was taken away")
