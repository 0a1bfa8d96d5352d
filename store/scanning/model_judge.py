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
from store.scanning.attempt_texts import texts_of

LONGEST_TRANSCRIPT: Final = 200_000
"""The number of characters of a transcript that a model gets. Of a longer one, it gets the beginning and the end."""
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
            Unavailable: the server refused the request, or could not be reached in three tries.
            ValueError: the answer is neither yes nor no.
        """
        messages = [
            {"role": "system", "content": f"{self._prompt}\n\n{_FORM}"},
            {"role": "user", "content": transcript_of(record)},
        ]
        request = {"model": self._model, "messages": messages, "temperature": 0}
        key = os.environ.get(self._key_variable)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        fault = ""
        async with aiohttp.ClientSession(headers=headers) as session:
            for number in range(_TRIES):
                await asyncio.sleep(_PAUSE_SECONDS * number)
                try:
                    async with session.post(self._url, json=request) as response:
                        if response.status == 200:
                            return _verdict(await response.json(content_type=None))
                        fault = f"status {response.status}: {(await response.text())[:100]}"
                        if response.status not in _RETRIED:
                            break
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


def _verdict(answer: Any) -> dict[str, Any]:
    try:
        content = str(answer["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError):
        content = ""
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
                "explanation": explanation if isinstance(explanation, str) else None,
            }
    word = _WORD.match(content)
    if word is None:
        raise ValueError(f"the model answered neither yes nor no: {content[:100]!r}")
    return {"value": float(word[1].lower() == "yes"), "explanation": content.strip()}
