"""A bare reverse proxy of httpx, a model, the LLM proxy and their clients, each in its own process."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from typing import Final

import httpx2
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from store.runtime.loop_thread import new_loop
from store.wire.listener import bind
from tests.benchmarks.protocol import serve
from tests.benchmarks.proxy_side import ProxySide

_PASSED_ON: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class BareHttpx:
    """The least that passes a call on with httpx, and streams its answer; an application of uvicorn.

    Args:
        url: of the model.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None), trust_env=False)
        request = Request(scope, receive)
        asked = self._client.build_request(
            "POST", self._url + request.url.path, content=await request.body(), headers=_PASSED_ON
        )
        answer = await self._client.send(asked, stream=True)

        async def pieces() -> AsyncGenerator[bytes]:
            async for piece in answer.aiter_raw():
                yield piece
            await answer.aclose()

        response = StreamingResponse(pieces(), answer.status_code, media_type=answer.headers["content-type"])
        await response(scope, receive, send)


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Leave them to the process."""


class LoopProxySide(ProxySide):
    """As the side of the proxy alone, and commands for a bare proxy of another library."""

    def httpx(self, url: str) -> str:
        """Start a bare reverse proxy of httpx before a model, in a thread until the process ends; return its URL."""
        listener = bind("127.0.0.1", 0)
        config = uvicorn.Config(
            BareHttpx(url), http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
        )
        server = _Server(config)

        def work() -> None:
            new_loop().run_until_complete(server.serve([listener]))

        threading.Thread(target=work, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    serve(LoopProxySide())
