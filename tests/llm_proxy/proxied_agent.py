"""An agent that calls a model, and the spans of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import openai
from openai.types.chat import ChatCompletion

from store.errors import Unavailable
from store.interface.delegating import DelegatingStore
from store.interface.numbering import Numbering
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy
from store.models import LightningStoreCapabilities, Rollout, Span
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer

CLIENT_KEY = "sk-client-secret"
NewProxy = Callable[..., Awaitable[LLMProxy]]
NewClient = Callable[..., openai.AsyncOpenAI]


def backend_of(model: ModelServer, name: str = "main", **details: Any) -> Backend:
    """Return a backend that is this server."""
    options: dict[str, Any] = {"name": name, "base_url": model.url, "models": [MODEL], "supports_token_ids": True}
    return Backend(**{**options, **details})


class Gated(DelegatingStore):
    """A store that takes spans when it is told to.

    Attributes:
        gate: spans wait for it.
        failures: raised, one at each call, before spans are taken.
        came: set when a span came.
        is_away: whether it cannot be asked for rollouts.
    """

    def __init__(self, target: Store) -> None:
        self._target = target
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.came = asyncio.Event()
        self.is_away = False

    @property
    def target(self) -> Store:
        """The store behind it."""
        return self._target

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Those of the store behind it."""
        return self._target.capabilities

    async def get_rollout_by_id(self, *args: Any, **kwargs: Any) -> Rollout | None:
        """Return a rollout, as told."""
        if self.is_away:
            raise Unavailable("the store was taken away")
        return await super().get_rollout_by_id(*args, **kwargs)

    async def add_span(self, span: Span) -> Span | None:
        """Store a span, as told."""
        await self._admit()
        return await super().add_span(span)

    async def record_spans(self, spans: Sequence[Span], *, number: bool = False) -> list[tuple[int, int]]:
        """Number and store spans, as told."""
        await self._admit()
        assert isinstance(self._target, Numbering)
        return await self._target.record_spans(spans, number=number)

    async def _admit(self) -> None:
        self.came.set()
        if self.failures:
            raise self.failures.pop(0)
        await self.gate.wait()

    async def close(self) -> None:
        """Close the store behind it."""
        await self._target.close()


class Agent:
    """Someone who calls the model in an attempt of a rollout, with the stock client."""

    def __init__(self, store: Store, proxy: LLMProxy, rollout_id: str, attempt_id: str) -> None:
        self.store = store
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.url = f"{proxy.endpoint}/rollout/{rollout_id}/attempt/{attempt_id}/v1"
        self.client = openai.AsyncOpenAI(base_url=self.url, api_key=CLIENT_KEY, max_retries=0)

    @classmethod
    @asynccontextmanager
    async def at_work(cls, store: Store, proxy: LLMProxy) -> AsyncGenerator[Self]:
        """An agent in a new rollout."""
        started = await store.start_rollout({"question": "What is seven times six?"})
        agent = cls(store, proxy, started.rollout_id, started.attempt.attempt_id)
        async with agent.client:
            yield agent

    async def chat(self, **details: Any) -> ChatCompletion:
        """Ask the model."""
        options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, **details}
        return cast("ChatCompletion", await self.client.chat.completions.create(**options))

    async def spans(self) -> list[Span]:
        """Return what is recorded, in the order of the numbers."""
        return list(await self.store.query_spans(self.rollout_id, self.attempt_id))

    async def span(self) -> Span:
        """Return the only span."""
        (span,) = await self.spans()
        return span
