"""Agent that plays one game of finding a secret number. The agent gets each guess from a model over HTTP."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Any, Final

import aiohttp

from store.examples.guess_number.game import FOUND, Game, Verdict
from store.models import LLM, Rollout
from store.semconv import plan_key_of
from store.training import llm_rollout

logger = logging.getLogger(__name__)

_TRIES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.2
_RETRIED_STATUSES: Final = frozenset({429, 500, 502, 503, 504})


class NoAnswer(RuntimeError):
    """The model did not answer a request, even after retries."""


@llm_rollout
async def guesser(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    """Play one game, and return 1 if the secret was found, else 0.

    Args:
        task: the `secret`, and the rules of the game: `numbers` and `guesses`.
        llm: the model, with its address.
        rollout: the execution of the task, as the store records it. The seed of the model's choices depends on the
            rollout's place in the training, so that a game has the same choices in any order of the games.

    Raises:
        NoAnswer: the model cannot be reached, or refuses a request.
    """
    game = Game(task["numbers"], task["guesses"])
    turns: list[tuple[str, Verdict]] = []
    async with aiohttp.ClientSession() as http:
        while len(turns) < game.guesses:
            request = {
                **llm.sampling_parameters,
                "model": llm.model,
                "messages": game.messages(turns),
                "seed": _seed(rollout, len(turns)),
            }
            guess = await _ask(http, f"{llm.endpoint}/v1/chat/completions", request)
            verdict = game.judge(task["secret"], guess)
            if verdict is None or verdict == FOUND:
                return float(verdict == FOUND)
            turns.append((guess, verdict))
    return 0.0


def _seed(rollout: Rollout, turn: int) -> int:
    metadata = rollout.metadata or {}
    # The name of the run is the part before "/". It is left out, so that two runs with the same seed play the same
    # games.
    _, _, place = (plan_key_of(metadata) or rollout.rollout_id).partition("/")
    return zlib.crc32(f"{metadata.get('seed')}/{place}/{turn}".encode())


async def _ask(http: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> str:
    """Return the model's next guess. A request to an unavailable model is repeated for a few seconds."""
    problem = ""
    for number in range(_TRIES):
        if number:
            logger.warning("no guess from %s yet, %s; the request is repeated", request["model"], problem)
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2 ** (number - 1))
        try:
            async with http.post(url, json=request) as answer:
                if answer.status == 200:
                    return (await answer.json())["choices"][0]["message"]["content"]
                problem = f"{answer.status}: {await answer.text()}"
                if answer.status not in _RETRIED_STATUSES:
                    break
        except aiohttp.ClientError as error:
            problem = f"{type(error).__name__}: {error}"
    raise NoAnswer(f"no guess from {request['model']}: {problem}")
