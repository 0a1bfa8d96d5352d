"""SIGKILL of the proxy while it answers: each answer whose end a client has received is recorded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from multiprocessing.connection import Connection

import aiohttp
import pytest
from starlette.responses import Response

from store import open_store
from store.llm_proxy import Backend, LLMProxy
from tests.faults.processes import Killable, until_left
from tests.llm_proxy.model_server import MODEL, Asked, ModelServer, chats, delta, events, streams
from tests.postgres import free_port
from tests.torture import Rounds

AT_ONCE = 8
BETWEEN_KILLS = 40
"""The number of answers between two kills."""
STREAM = events(delta("It is ", [1]), delta("42.", [2]), delta(finish="stop"))


async def serve(ready: Connection, port: int, store_url: str, model_url: str) -> None:
    """Run a proxy in a process."""
    async with await open_store(store_url) as store:
        backends = [Backend("main", f"{model_url}/v1", models=[MODEL], supports_token_ids=True)]
        async with LLMProxy(port, store=store, backends=backends):
            await until_left(ready)


async def answer(asked: Asked) -> Response | None:
    """Answer with a stream if the client asks for one."""
    return await (streams(STREAM[:40], STREAM[40:]) if asked.json["stream"] else chats())(asked)


class Clients:
    """Clients of one attempt. Every second call is a stream.

    Attributes:
        answered: the prompts of the calls whose answers were received up to their ends.
    """

    def __init__(self, url: str) -> None:
        self.answered: list[str] = []
        self._url = f"{url}/v1/chat/completions"
        self._numbers: Iterator[int] = itertools.count()
        self._progress = asyncio.Condition()

    async def call_until_killed(self) -> None:
        """Call again and again until the proxy does not answer."""
        async with aiohttp.ClientSession() as session:
            while await self._is_answered(session, next(self._numbers)):
                async with self._progress:
                    self._progress.notify_all()

    async def _is_answered(self, session: aiohttp.ClientSession, number: int) -> bool:
        text, is_stream, received = f"call {number}", number % 2 == 1, b""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": is_stream}
        try:
            async with session.post(self._url, json=body) as response:
                async for chunk in response.content.iter_any():
                    received += chunk
        except aiohttp.ClientError:
            # A client of a stream needs no more than this.
            is_complete = received == STREAM
        else:
            assert response.status == 200, received
            is_complete = True
        if is_complete:
            self.answered.append(text)
        return is_complete

    async def wait_for_answers(self, count: int) -> None:
        """Wait for further answers."""
        count += len(self.answered)
        async with asyncio.timeout(120), self._progress:
            await self._progress.wait_for(lambda: len(self.answered) >= count)


@pytest.mark.slow
async def test_each_answer_that_has_reached_its_client_is_recorded_when_the_proxy_is_killed(
    durable_url: str, model: ModelServer, rounds: Rounds
) -> None:
    model.will(answer)
    port = free_port()
    async with await open_store(durable_url) as store:
        started = await store.start_rollout(1)
        ids = started.rollout_id, started.attempt.attempt_id
        clients = Clients(f"http://127.0.0.1:{port}/rollout/{ids[0]}/attempt/{ids[1]}")
        for _ in range(rounds(30, few=2)):
            proxy = Killable(serve, port, durable_url, model.url)
            calls = [asyncio.create_task(clients.call_until_killed()) for _ in range(AT_ONCE)]
            try:
                await clients.wait_for_answers(BETWEEN_KILLS)
            finally:
                await asyncio.to_thread(proxy.kill)
            await asyncio.gather(*calls)
            spans = await store.query_spans(ids[0], limit=-1)
            recorded = [str(span.attributes["gen_ai.prompt.0.content"]) for span in spans]
            assert set(clients.answered) <= set(recorded)
            assert len(set(recorded)) == len(recorded)
            assert len({span.sequence_id for span in spans}) == len(spans)
