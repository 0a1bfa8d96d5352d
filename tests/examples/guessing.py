"""The processes between an agent and its model, which tests can kill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection

from store import open_store
from store.examples.guess_number.course import Course
from store.examples.guess_number.game import HIGHER, SMALL, Game
from store.examples.guess_number.job import run
from store.examples.guess_number.policy import Sampled
from store.examples.guess_number.server import PolicyServer
from store.training import Backend, LLMProxy
from tests.faults import processes
from tests.postgres import free_port

GAME = SMALL
MODEL = "halving"


SHORT = Course(game=SMALL, steps=2, samples=2, least=-1.0, least_gain=-1.0)
"""A training of the policy that asks for nothing."""


async def train_shortly(url: str) -> None:
    """Run the training on a store, with the games in this process."""
    await asyncio.to_thread(run, url, SHORT, name="killed", runners=0, quiet=True)


class Halving:
    """Plays as well as one can; stands for a policy where none is needed."""

    def __init__(self, game: Game) -> None:
        self._words = game.words
        self._numbers = game.numbers

    def sample(self, prompts: Sequence[Sequence[int]], draws: Sequence[float]) -> list[Sampled]:
        return [Sampled(self._words.index(str(self._next(prompt))), 0.0) for prompt in prompts]

    def _next(self, prompt: Sequence[int]) -> int:
        least, most = 1, self._numbers
        said = [self._words[token] for token in prompt[1:]]
        for guess, told in zip(said[::2], said[1::2], strict=True):
            least, most = (int(guess) + 1, most) if told == HIGHER else (least, int(guess) - 1)
        return (least + most) // 2


class KillableProcess:
    """The proxy, or the server of the policy, on a port of its own, which it keeps.

    Attributes:
        url: where it is, whether it runs or not.
    """

    def __init__(self, kind: str, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = (kind, self.port, *arguments)
        self._process: processes.Killable | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._process = processes.Killable(_run, *self._arguments)

    def kill(self) -> None:
        """Kill it without a chance to finish anything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


async def _run(ready: Connection, kind: str, port: int, *arguments: str) -> None:
    async with AsyncExitStack() as until_the_end:
        if kind == "policy":
            server = await until_the_end.enter_async_context(PolicyServer(GAME, port))
            server.serve(MODEL, Halving(GAME))
        else:
            store_url, policy_url = arguments
            store = await until_the_end.enter_async_context(await open_store(store_url))
            backend = Backend("policy", policy_url, models=[MODEL], supports_token_ids=True, supports_logprobs=True)
            await until_the_end.enter_async_context(LLMProxy(port, store=store, backends=[backend]))
        await processes.until_left(ready)
