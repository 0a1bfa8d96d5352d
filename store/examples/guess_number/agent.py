"""The agent: plays one game by asking a model for each guess, over HTTP. It knows neither store nor training."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Any, Final

import aiohttp

from store.examples.guess_number.game import FOUND, Game, Verdict
from store.models import LLM, Rollout
from store.semconv import PLAN_KEY
from store.training import llm_rollout

logger = logging.getLogger(__name__)

_TRIES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.2
_COMES_BACK: Final = frozenset({429, 500, 502, 503, 504})


class NoAnswer(RuntimeError):
    """The model did not answer, however often it was asked."""


@llm_rollout
async def guesser(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    """Play one game; return 1 if the secret was found, else 0.

    Args:
        task: `secret`, and the rules: `numbers` and `guesses`.
        llm: what to ask.
        rollout: whose place in its plan seeds the model's choices, so that a game does not depend on other games.

    Raises:
        NoAnswer: the model cannot be reached.
    """
    game = Game(task["numbers"], task["guesses"])
    turns: list[tuple[str, Verdict]] = []
    async with aiohttp.ClientSession() as http:
        while len(turns) < game.guesses:
            asked = {
                **llm.sampling_parameters,
                "model": llm.model,
                "messages": game.messages(turns),
                "seed": _seed(rollout, len(turns)),
            }
            said = await _ask(http, f"{llm.endpoint}/v1/chat/completions", asked)
            told = game.judge(task["secret"], said)
            if told is None or told == FOUND:
                return float(told == FOUND)
            turns.append((said, told))
    return 0.0


def _seed(rollout: Rollout, turn: int) -> int:
    metadata = rollout.metadata or {}
    # Without the name of the run: two runs with one seed play the same games.
    _, _, place = str(metadata.get(PLAN_KEY, rollout.rollout_id)).partition("/")
    return zlib.crc32(f"{metadata.get('seed')}/{place}/{turn}".encode())


async def _ask(http: aiohttp.ClientSession, url: str, asked: dict[str, Any]) -> str:
    """Return the model's next word; a model that is away is asked again for a few seconds."""
    trouble = ""
    for number in range(_TRIES):
        if number:
            logger.warning("no guess from %s yet, %s; it is asked again", asked["model"], trouble)
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2 ** (number - 1))
        try:
            async with http.post(url, json=asked) as answer:
                if answer.status == 200:
                    return (await answer.json())["choices"][0]["message"]["content"]
                trouble = f"{answer.status}: {await answer.text()}"
                if answer.status not in _COMES_BACK:
                    break
        except aiohttp.ClientError as error:
            trouble = f"{type(error).__name__}: {error}"
    raise NoAnswer(f"no guess from {asked['model']}: {trouble}")
