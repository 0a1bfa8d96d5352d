"""Fixtures: a model server and a proxy in front of it, both on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from store.interface.store import Store
from store.llm_proxy import LLMProxy, ProxySettings
from tests.conftest import SQLITE
from tests.llm_proxy.model_server import ModelServer, model_server
from tests.llm_proxy.proxied_agent import CLIENT_KEY, Agent, NewClient, NewProxy, backend_of
from tests.training.stores import HTTP, POSTGRES_IN_TORTURE, Place, live, memory, place_of, training_server

__all__ = ["live", "memory", "place", "training_server"]


@pytest.fixture(params=[SQLITE, POSTGRES_IN_TORTURE, HTTP])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A file and a server: the proxy records calls into both."""
    return place_of(request, tmp_path)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """The model server."""
    async with model_server() as model:
        yield model


@pytest.fixture
async def other_model() -> AsyncIterator[ModelServer]:
    """Another one."""
    async with model_server() as model:
        yield model


@pytest.fixture
def store(memory: Store) -> Store:
    """In memory; tests of what is recorded put each database in its place."""
    return memory


@pytest.fixture
async def new_proxy(store: Store, model: ModelServer) -> AsyncIterator[NewProxy]:
    """A function that starts a proxy before the model server, with other arguments or settings where given."""
    async with AsyncExitStack() as running:

        async def start(**arguments: Any) -> LLMProxy:
            names = {field.name for field in fields(ProxySettings)} & arguments.keys()
            settings = ProxySettings(**{name: arguments.pop(name) for name in names})
            options: dict[str, Any] = {
                "store": store,
                "backends": [backend_of(model)],
                "settings": settings,
                **arguments,
            }
            return await running.enter_async_context(LLMProxy(**options))

        yield start


@pytest.fixture
async def proxy(new_proxy: NewProxy) -> LLMProxy:
    """A proxy before the model server."""
    return await new_proxy()


@pytest.fixture
async def agent(store: Store, proxy: LLMProxy) -> AsyncIterator[Agent]:
    """An agent in an attempt of its own."""
    async with Agent.at_work(store, proxy) as agent:
        yield agent


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A plain client."""
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def new_client() -> AsyncIterator[NewClient]:
    """A function that returns the stock client of a URL; it does not try twice."""
    async with AsyncExitStack() as clients:

        def client(url: str, **details: Any) -> openai.AsyncOpenAI:
            options: dict[str, Any] = {"base_url": url, "api_key": CLIENT_KEY, "max_retries": 0, **details}
            client = openai.AsyncOpenAI(**options)
            clients.push_async_callback(client.close)
            return client

        yield client
