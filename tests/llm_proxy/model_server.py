"""A small server of OpenAI's protocol with scripted answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from store.server.process.connection import Connection
from store.wire.listener import bind

Answer = Callable[["Asked"], Awaitable[Response | None]]
MODEL = "tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "What is seven times six?"}]


class Asked:
    """A request that came."""

    def __init__(self, request: Request, body: bytes, send: Send) -> None:
        self.method = request.method
        self.path = request.url.path
        self.query = request.url.query
        self.headers: Headers = request.headers
        self.body = body
        self.request = request
        self.send = send

    @property
    def json(self) -> Any:
        """The body."""
        return orjson.loads(self.body)


class ModelServer:
    """The server. Answers are given in turn, the last again and again; without any it is a chat model.

    Attributes:
        asked: the requests that came.
        left: set when a client broke its connection that was kept waiting by `waits_for_ever`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.left = asyncio.Event()
        self._answers: list[Answer] = []
        self._came = asyncio.Condition()

    def will(self, *answers: Answer) -> None:
        """Set what is answered from now on."""
        self._answers = list(answers)

    async def was_asked(self, times: int = 1) -> None:
        """Wait for the request of that number."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) >= times)

    def waits_for_ever(self, first: bytes = b"") -> Answer:
        """Give no answer, or only the beginning of a stream, until the client leaves."""

        async def answer(asked: Asked) -> None:
            if first:
                fields = [(b"content-type", b"text/event-stream")]
                await asked.send({"type": "http.response.start", "status": 200, "headers": fields})
                await asked.send({"type": "http.response.body", "body": first, "more_body": True})
            while (await asked.request.receive())["type"] != "http.disconnect":
                continue
            self.left.set()

        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = Asked(request, await request.body(), send)
        async with self._came:
            self.asked.append(asked)
            self._came.notify_all()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0] if self._answers else chats()
        response = await answer(asked)
        if response is not None:
            await response(scope, receive, send)


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def model_server() -> AsyncGenerator[ModelServer]:
    """A server that runs in the loop of the test."""
    listener = bind("127.0.0.1", 0)
    model = ModelServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(
        model, http=Connection, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = _Quiet(config)
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield model
    finally:
        server.should_exit = True
        await running
        listener.close()


def completion(**details: Any) -> dict[str, Any]:
    """A chat completion as vLLM gives it with `return_token_ids`."""
    message = {"role": "assistant", "content": "It is 42."}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [21, 22, 23]}
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "prompt_token_ids": [11, 12, 13, 14],
        "choices": [choice],
        "usage": usage,
        **details,
    }


def replies(value: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with JSON."""

    async def answer(_: Asked) -> Response:
        fields = {
            "content-type": "application/json",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return Response(orjson.dumps(value), status, fields)

    return answer


def sends(body: bytes, content_type: str = "application/json") -> Answer:
    """Answer with these bytes."""

    async def answer(_: Asked) -> Response:
        return Response(body, media_type=content_type)

    return answer


def chats(**details: Any) -> Answer:
    """Answer as a chat model."""
    return replies(completion(**details))


def events(*values: Any) -> bytes:
    """Server-sent events, the last of them [DONE]."""
    return b"".join(b"data: " + orjson.dumps(value) + b"\n\n" for value in values) + b"data: [DONE]\n\n"


def delta(content: str | None = None, ids: list[int] | None = None, finish: str | None = None, **more: Any) -> Any:
    """A chunk of a chat completion."""
    said: dict[str, Any] = dict(more) if content is None else {"content": content, **more}
    choice = {"index": 0, "delta": said, "finish_reason": finish, "token_ids": ids}
    return {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def streams(*pieces: bytes | asyncio.Event) -> Answer:
    """Answer with a stream in these pieces; an event among them is waited for."""

    async def content() -> AsyncGenerator[bytes]:
        for piece in pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece
                # Let each go out on its own.
                await asyncio.sleep(0)

    async def answer(_: Asked) -> Response:
        return StreamingResponse(content(), media_type="text/event-stream")

    return answer


def breaks_off(piece: bytes = b"", gate: asyncio.Event | None = None) -> Answer:
    """Close the connection: at once, or after a piece of a stream, and then when the gate opens."""

    async def answer(asked: Asked) -> None:
        if piece:
            fields = [(b"content-type", b"text/event-stream")]
            await asked.send({"type": "http.response.start", "status": 200, "headers": fields})
            await asked.send({"type": "http.response.body", "body": piece, "more_body": True})
        if gate is not None:
            await gate.wait()
        # What was written is sent before the connection is closed.
        asked.request.scope["rollbook.connection"].transport.close()
        while (await asked.request.receive())["type"] != "http.disconnect":
            continue

    return answer


def waits(gate: asyncio.Event, then: Answer | None = None) -> Answer:
    """Answer when the gate opens."""

    async def answer(asked: Asked) -> Response | None:
        await gate.wait()
        return await (then or chats())(asked)

    return answer
