"""A client of plain HTTP and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from yarl import URL

from store.cli.example_parts import front_end
from store.server.app import build_app
from store.server.partitions import Partitions
from store.server.pending import Parked
from store.server.process.serve import Server
from store.wire.listener import bind
from tests.conftest import POSTGRES, SQLITE
from tests.prompt_uvicorn import end_at_once

end_at_once()

PREFIX = "/v1/agl"
ON_BOTH_DATABASES = pytest.mark.parametrize("store_url", [SQLITE, POSTGRES], indirect=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]
    """By their names in lower case."""

    @property
    def json(self) -> Any:
        """The body as JSON, which it must be declared as."""
        assert self.headers["content-type"] == "application/json", self
        return orjson.loads(self.body)

    def ok(self, status: int = 200) -> Any:
        """Return the JSON of an answer that has this status."""
        assert self.status == status, self
        return self.json

    @property
    def detail(self) -> Any:
        """What a refusal says."""
        assert self.status >= 400, self
        return self.json["detail"]


class Api:
    """A client that knows nothing of stores: paths below `/v1/agl` go out as they are written."""

    def __init__(self, session: aiohttp.ClientSession, url: str, parked: Parked) -> None:
        self.session = session
        self.url = url
        self._parked = parked

    async def send(self, method: str, path: str, **details: Any) -> Answer:
        """Send a request; a path that does not begin with `/v1` or `//` lies below the prefix."""
        full = path.removeprefix("/") if path.startswith("//") else f"{PREFIX}{path}"
        async with self.session.request(method, URL(self.url + full, encoded=True), **details) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, await answer.read(), headers)

    async def get(self, path: str, **details: Any) -> Answer:
        """Send a GET."""
        return await self.send("GET", path, **details)

    async def post(self, path: str, body: Any = ..., **details: Any) -> Answer:
        """Send a POST: without a body, with bytes as they are, or with JSON."""
        if body is ...:
            return await self.send("POST", path, **details)
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json", **details.pop("headers", {})}
        return await self.send("POST", path, data=raw, headers=headers, **details)

    async def until_parked(self, count: int = 1) -> None:
        """Return once so many calls wait in the server, which runs in this loop."""
        while len(self._parked) != count:  # noqa: ASYNC110 - nothing there tells of it
            await asyncio.sleep(0)

    async def enqueue(self, *inputs: Any, **fields: Any) -> list[Any]:
        """Enqueue rollouts and return them."""
        rollouts = [{"input": input_, **fields} for input_ in inputs or ({"question": 1},)]
        return (await self.post("/queues/rollouts/enqueue", {"rollouts": rollouts})).ok(201)

    async def dequeue(self, **body: Any) -> list[Any]:
        """Claim rollouts and return them."""
        return (await self.post("/queues/rollouts/dequeue", body)).ok()

    async def claimed(self, **fields: Any) -> tuple[str, str]:
        """Return the ids of a fresh rollout and its attempt, claimed."""
        await self.enqueue(**fields)
        (rollout,) = await self.dequeue()
        return rollout["rollout_id"], rollout["attempt"]["attempt_id"]


@asynccontextmanager
async def speaking_to(partitions: Partitions, **settings: Any) -> AsyncGenerator[Api]:
    """Serve partitions and give a client."""
    started = asyncio.Event()
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings.setdefault("front_end", front_end())
    app = build_app(partitions, **settings)
    server = Server(app, started.set)
    serving = asyncio.ensure_future(server.serve([listener]))
    await started.wait()
    try:
        async with aiohttp.ClientSession() as session:
            yield Api(session, url, app.state.parked)
    finally:
        server.should_exit = True
        await serving


def a_span(rollout_id: str, attempt_id: str, span_id: str = "00f067aa0ba902b7", **fields: Any) -> dict[str, Any]:
    """Return a span as JSON."""
    plain: dict[str, Any] = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": 1,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": span_id,
        "parent_id": None,
        "name": "step",
        "status": {"status_code": "OK", "description": None},
        "attributes": {},
        "events": [],
        "links": [],
        "start_time": 1_700_000_000.25,
        "end_time": 1_700_000_001.5,
        "context": None,
        "parent": None,
        "resource": {"attributes": {}, "schema_url": ""},
    }
    return plain | fields
