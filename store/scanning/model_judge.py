"""A model that judges the transcript of an attempt, at a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any, Final, cast

import aiohttp

from store.errors import Unavailable
from store.rescoring.attempt_record import AttemptRecord
from store.scanning.attempt_texts import shortened, texts_of

LONGEST_TRANSCRIPT: Final = 200_000
"""The maximum number of characters that a model gets: of a longer transcript the beginning and the end."""
LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""The maximum number of bytes of an answer of the model server."""
_TRIES: Final = 3
_PAUSE_SECONDS: Final = 0.25
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_FORM: Final = 'Answer only with JSON of the form {"match": true or false, "explanation": "one sentence"}.'
_WORD: Final = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*```(?:json)?\s*|\s*```\s*$")


class ModelJudge:
    """A prompt about the transcript of an attempt, which a model answers with yes or no.

    Args:
        prompt: the question.
        model: the name of the model.
        endpoint: the base address of the server, such as `http://localhost:8000/v1`.
        key_variable: the environment variable with the key; no key is sent if it is not set.
    """

    def __init__(self, prompt: str, model: str, endpoint: str, key_variable: str) -> None:
        self._prompt, self._model = prompt, model
        self._url = f"{endpoint.rstrip('/')}/chat/completions"
        self._key_variable = key_variable

    async def __call__(self, record: AttemptRecord) -> dict[str, Any]:
        """Return 1 as `value` if the model answers yes, otherwise 0, and its `explanation`.

        Raises:
            Unavailable: the server refused the request, or gave no answer in three tries.
            ValueError: the answer is neither yes nor no, or longer than `LONGEST_ANSWER`.
        """
        messages = [
            {"role": "system", "content": f"{self._prompt}\n\n{_FORM}"},
            {"role": "user", "content": transcript_of(record)},
        ]
        request = {"model": self._model, "messages": messages, "temperature": 0}
        key = os.environ.get(self._key_variable)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        fault, pause = "", 0.0
        async with aiohttp.ClientSession(headers=headers) as session:
            for number in range(_TRIES):
                await asyncio.sleep(pause)
                pause = _PAUSE_SECONDS * (number + 1)
                try:
                    async with session.post(self._url, json=request) as response:
                        content = b""
                        async for part in response.content.iter_any():
                            content += part
                            if len(content) > LONGEST_ANSWER:
                                raise ValueError(
                                    f"the answer of the model server is longer than {LONGEST_ANSWER:,} bytes"
                                )
                        if response.status == 200:
                            return _verdict(content)
                        fault = f"status {response.status}: {content[:100].decode(errors='replace')}"
                        if response.status not in _RETRIED:
                            break
                        wait = response.headers.get("Retry-After", "")
                        pause = max(pause, float(wait)) if wait.isdecimal() else pause
                except aiohttp.ClientError as error:
                    fault = f"{type(error).__name__}: {error}"
        raise Unavailable(f"the model server gave no answer: {fault}")


def transcript_of(record: AttemptRecord) -> str:
    """Return the texts of an attempt, each once, with their kinds."""
    parts = dict.fromkeys(
        f"[{text.kind.name.lower()} {text.name}".rstrip() + f"]\n{text.text}" for text in texts_of(record)
    )
    text = "\n\n".join(parts)
    half = LONGEST_TRANSCRIPT // 2
    return text if len(text) <= LONGEST_TRANSCRIPT else f"{text[:half]}\n\n[…]\n\n{text[-half:]}"


def _verdict(answer: bytes) -> dict[str, Any]:
    try:
        content = str(json.loads(answer)["choices"][0]["message"]["content"] or "")
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError(f"the answer has no message of a model: {answer[:100].decode(errors='replace')!r}") from None
    try:
        fields: Any = json.loads(_FENCE.sub("", content))
    except ValueError:
        fields = None
    if isinstance(fields, dict):
        values = cast("dict[str, Any]", fields)
        if isinstance(values.get("match"), bool):
            explanation = values.get("explanation")
            return {
                "value": float(values["match"]),
                "explanation": shortened(explanation if isinstance(explanation, str) else None),
            }
    word = _WORD.match(content)
    if word is None:
        raise ValueError(f"the model answered neither yes nor no: {content[:100]!r}")
    return {"value": float(word[1].lower() == "yes"), "explanation": shortened(content.strip())}
