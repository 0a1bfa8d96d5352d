"""HTTP server of a policy, the model that a training improves. The server supports OpenAI's chat completions.

Concurrent calls form a batch. The policy generates the next token of all answers of a batch at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from store.errors import Invalid
from store.examples.guess_number.game import Vocabulary
from store.runtime.ids import span_id
from store.wire.listener import bind, url_of

if TYPE_CHECKING:
    from types import TracebackType

    from store.examples.guess_number.policy import Sampled

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 30.0


class Sampler(Protocol):
    """A model that chooses the next token: a `Policy`, or another model."""

    def sample(self, prompts: Sequence[Sequence[int]], draws: Sequence[float]) -> Sequence[Sampled]:
        """Return the next token after each prompt, as `Policy.sample` does."""
        ...


@dataclass(eq=False, slots=True)
class _Call:
    """A request that waits for its answer."""

    model: str
    prompt: list[int]
    dice: random.Random
    longest: int
    """The maximum number of tokens of the answer."""
    answered: asyncio.Future[None]
    """Is done when `answer` is complete."""
    answer: list[Sampled] = field(default_factory=list["Sampled"])


class PolicyServer:
    """Server that serves one version of a policy at a time. It runs in a separate thread and serves only this machine.

    Args:
        vocabulary: the conversion between messages and the tokens of the policy.
        port: the port to listen on; 0 for any free port.

    Attributes:
        url: the address of the server.
        calls: the number of answered calls.
        batches: the number of batches in which the calls were answered.
    """

    def __init__(self, vocabulary: Vocabulary, port: int = 0) -> None:
        self.calls = 0
        self.batches = 0
        self._vocabulary = vocabulary
        self._serves: tuple[str, Sampler] | None = None
        self._waiting: list[_Call] = []
        self._listener = bind(_HOST, port)
        self.url = url_of(_HOST, self._listener.getsockname()[1])
        self._ended: Future[None] = Future()
        self._server: _Server | None = None

    def serve(self, name: str, policy: Sampler) -> None:
        """Serve this policy under this name, instead of the policy that was served before."""
        self._serves = (name, policy)

    async def __aenter__(self) -> Self:
        started: Future[None] = Future()
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        self._server = _Server(app, lambda: started.set_result(None))
        threading.Thread(target=self._live, name="policy server", daemon=True).start()
        async with asyncio.timeout(_START_SECONDS):
            await asyncio.wrap_future(started)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None  # set by `__aenter__`
        self._server.should_exit = True
        await asyncio.wrap_future(self._ended)

    def _live(self) -> None:
        assert self._server is not None  # set by `__aenter__`
        try:
            asyncio.run(self._server.serve([self._listener]))
        finally:
            self._listener.close()
            self._ended.set_result(None)

    async def _complete(self, request: Request) -> Response:
        try:
            call = self._read(orjson.loads(await request.body()))
        except (orjson.JSONDecodeError, Invalid) as error:
            return _json({"error": {"message": str(error), "type": "invalid_request_error"}}, 400)
        self._waiting.append(call)
        if len(self._waiting) == 1:
            # Calls that arrive before the callback runs are answered in the same batch.
            asyncio.get_running_loop().call_soon(self._answer_all)
        await call.answered
        return _json(self._completion(call))

    def _read(self, body: Any) -> _Call:
        """Return the parsed request.

        Raises:
            Invalid: the request names another model than the served model, or the messages are not messages of a game.
        """
        fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        if not isinstance(fields.get("messages"), list):
            raise Invalid("messages", "send an object with model and messages")
        served = self._serves[0] if self._serves else None
        if fields.get("model") != served:
            raise Invalid("model", f"{fields.get('model')!r} is not served; {served} is")
        seed, longest = fields.get("seed"), fields.get("max_tokens")
        return _Call(
            str(served),
            self._vocabulary.tokens(fields["messages"]),
            random.Random(None if seed is None else str(seed)),
            min(longest, self._vocabulary.longest_answer)
            if type(longest) is int and longest > 0
            else self._vocabulary.longest_answer,
            asyncio.get_running_loop().create_future(),
        )

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        assert self._serves is not None  # `_read` refuses all requests before the first `serve`
        policy, unfinished = self._serves[1], waiting
        while unfinished:
            prompts = [[*call.prompt, *(sampled.token for sampled in call.answer)] for call in unfinished]
            for call, sampled in zip(
                unfinished, policy.sample(prompts, [call.dice.random() for call in unfinished]), strict=True
            ):
                call.answer.append(sampled)
            unfinished = [call for call in unfinished if not self._has_ended(call) and len(call.answer) < call.longest]
        for call in waiting:
            if not call.answered.done():
                call.answered.set_result(None)
        self.calls += len(waiting)
        self.batches += 1

    def _has_ended(self, call: _Call) -> bool:
        return call.answer[-1].token == self._vocabulary.end

    def _completion(self, call: _Call) -> dict[str, Any]:
        tokens = [sampled.token for sampled in call.answer]
        words = [self._vocabulary.word(token) for token in tokens]
        log_probs = [
            {"token": word, "logprob": sampled.log_prob, "bytes": list(word.encode()), "top_logprobs": []}
            for word, sampled in zip(words, call.answer, strict=True)
        ]
        return {
            "id": f"chatcmpl-{span_id()}",
            "object": "chat.completion",
            "created": 0,
            "model": call.model,
            "prompt_token_ids": call.prompt,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": self._vocabulary.text(tokens)},
                    "finish_reason": "stop" if self._has_ended(call) else "length",
                    "token_ids": tokens,
                    "logprobs": {"content": log_probs},
                }
            ],
            "usage": {
                "prompt_tokens": len(call.prompt),
                "completion_tokens": len(tokens),
                "total_tokens": len(call.prompt) + len(tokens),
            },
        }


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


class _Server(uvicorn.Server):
    def __init__(self, app: Starlette, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False)
        )
        self._on_started = on_started

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # The program that contains the server handles Ctrl+C, so the server must not handle signals.
        yield
