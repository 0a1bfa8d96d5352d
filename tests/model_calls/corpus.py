"""The corpus: responses and streams of every protocol, with the facts that a reader must return."""

from __future__ import annotations

from tests.model_calls import chat, completions, embeddings, messages, responses
from tests.model_calls.entries import Entry

CORPUS: tuple[Entry, ...] = (
    *chat.ENTRIES,
    *completions.ENTRIES,
    *responses.ENTRIES,
    *messages.ENTRIES,
    *embeddings.ENTRIES,
)
