"""A model that responds at once, a bare reverse proxy, the LLM proxy, and their clients, each in its own process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

import aiohttp
import orjson
from aiohttp import web

from store import open_store
from store.interface.store import Store
from store.llm_proxy import Backend, LLMProxy
from store.runtime.loop_thread import new_loop
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import percentiles

_CHUNKS = 20
_PATH = "/v1/chat/completions"
_PROMPT = [{"role": "user", "content": "What is seven times six? " * 20}]
_TEXT = "It is forty-two. " * 10

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _chunk(number: int) -> bytes:
    said = {"content": _TEXT[number : number + 5]}
    choice = {"index": 0, "delta": said, "token_ids": [number], "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


_STREAM = [_chunk(number) for number in range(_CHUNKS)] + [b"data: [DONE]\n\n"]
_COMPLETION = orjson.dumps({
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "prompt_token_ids": list(range(200)),
    "choices": [{
        "index": 0,
        "message": {"role": "assistant", "content": _TEXT},
        "finish_reason": "stop",
        "token_ids": list(range(_CHUNKS)),
    }],
    "usage": {"prompt_tokens": 200, "completion_tokens": _CHUNKS, "total_tokens": 220},
})  # fmt: skip


async def _model(request: web.Request) -> web.StreamResponse:
    asked = orjson.loads(await request.read())
    if not asked.get("stream"):
        return web.Response(body=_COMPLETION, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for piece in _STREAM:
        await response.write(piece)
        # Each goes out on its own, as tokens do.
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def _bare(url: str) -> Handle:
    """The least that passes a call on with aiohttp, and streams its answer."""
    session: aiohttp.ClientSession | None = None

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal session
        session = session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with session.post(url + request.path, data=await request.read(), headers=headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    return handle


class ProxySide:
    """Commands."""

    def __init__(self) -> None:
        self._proxy: LLMProxy | None = None
        self._store: Store | None = None

    def model(self) -> str:
        """Start the model and return its URL."""
        return _served(_model)

    def bare(self, url: str) -> str:
        """Start a bare reverse proxy before it."""
        return _served(_bare(url))

    async def ours(self, url: str, store_url: str) -> dict[str, str]:
        """Start our proxy, and an attempt to record for; return the URL that records nothing and the one that does."""
        self._store = await open_store(store_url)
        self._proxy = LLMProxy(store=self._store, backends=[Backend("main", url, supports_token_ids=True)])
        await self._proxy.start()
        started = await self._store.start_rollout(1)
        recorded = self._proxy.as_resource(started.rollout_id, started.attempt.attempt_id, "m").endpoint
        return {"passing": self._proxy.endpoint, "recording": recorded}

    async def stop(self) -> int:
        """Stop it, and return how many spans were recorded."""
        assert self._proxy is not None
        assert self._store is not None
        await self._proxy.stop()
        counted = await self._store.statistics()
        await self._store.close()
        return int(counted.get("total_spans", 0))

    def cpu(self) -> float:
        """Return the CPU time of this process, in milliseconds."""
        return time.process_time() * 1000

    async def call(self, url: str, callers: int, calls: int, *, stream: bool) -> dict[str, float]:
        """Call a URL, so many at a time, and return how long the calls took, in milliseconds."""
        body = orjson.dumps({"model": "m", "messages": _PROMPT, "stream": stream})
        left = calls
        taken: list[float] = []

        async def caller(session: aiohttp.ClientSession) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                begun = time.perf_counter()
                headers = {"content-type": "application/json"}
                async with session.post(url + _PATH, data=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()
                taken.append(time.perf_counter() - begun)

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(caller(session) for _ in range(callers)))
        return percentiles(taken)


def _served(handle: Handle) -> str:
    """Serve in a thread, until the process ends; return the URL."""
    where: Future[str] = Future()

    async def run() -> None:
        app = web.Application()
        app.router.add_post(_PATH, handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        where.set_result(f"http://{host}:{port}")
        await asyncio.Event().wait()

    def work() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())

    threading.Thread(target=work, daemon=True).start()
    return where.result(30)


if __name__ == "__main__":
    serve(ProxySide())
