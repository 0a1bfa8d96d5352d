"""Substitute for a language model, which counts the words of good and bad news in a prompt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NAME: Final = "word-counter"

_GOOD: Final = "calm cheap contract contracts gain gains growth high lifts order orders profit record rises strong wins"
_BAD: Final = "accident cut debt delays down fall falls fear lawsuit loss low sinks strike strikes warns weak"
_WEIGHTS: Final = dict.fromkeys(_GOOD.split(), 1) | dict.fromkeys(_BAD.split(), -1)
_SENTENCE: Final = re.compile(r"[^.!?\n]+[.!?]")
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the model, with its numbers of tokens."""

    text: str
    tokens_in: int
    tokens_out: int


async def ask(prompt: str) -> Answer:
    """Answer a prompt, whose first line is the task.

    The answer to `Argue for …` contains the sentences with more good than bad words. The answer to `Argue against …`
    contains the sentences with more bad than good words. The answer to `Judge …` is a verdict on all words. The answer
    to any other task contains all sentences once. Equal prompts get equal answers.
    """
    task, _, material = prompt.partition("\n")
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(material)]
    if task.startswith("Judge"):
        balance = score(material)
        verdict = "BUY" if balance > 1 else "SELL" if balance < -1 else "HOLD"
        text = f"{verdict} ({balance:+d})"
    elif task.startswith("Argue for"):
        text = _joined([sentence for sentence in sentences if score(sentence) > 0], "Little speaks for it.")
    elif task.startswith("Argue against"):
        text = _joined([sentence for sentence in sentences if score(sentence) < 0], "Little speaks against it.")
    else:
        text = _joined(sentences, "Nothing to report.")
    return Answer(text, len(_WORD.findall(prompt)), len(_WORD.findall(text)))


def score(text: str) -> int:
    """Return the number of good words in a text, minus the number of bad words."""
    return sum(_WEIGHTS.get(word.lower(), 0) for word in _WORD.findall(text))


def _joined(sentences: list[str], default: str) -> str:
    return " ".join(dict.fromkeys(sentences)) or default
