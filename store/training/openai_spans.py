"""Instrumentation of the `openai` client. It records the client's calls as spans of the current attempt.

It records chat completions, calls of the Responses API, and embeddings. It patches only public classes of the client.
An attempt is one execution of a task by an agent.
"""

from __future__ import annotations

from typing import Final

from store.model_calls import Protocol
from store.training.client_attributes import request_attributes, response_attributes, stream_assembly
from store.training.client_calls import CALL_SPAN, EMBEDDINGS_SPAN, RecordedApi, recording_method
from store.training.client_patches import ClientMethods, patch_client, unpatch_client

_CHAT: Final = RecordedApi(
    CALL_SPAN,
    request_attributes(Protocol.CHAT),
    response_attributes(Protocol.CHAT),
    stream_assembly(Protocol.CHAT),
    "choices",
)
_RESPONSES: Final = RecordedApi(
    CALL_SPAN,
    request_attributes(Protocol.RESPONSES),
    response_attributes(Protocol.RESPONSES),
    stream_assembly(Protocol.RESPONSES),
    "output",
)
_EMBEDDINGS: Final = RecordedApi(
    EMBEDDINGS_SPAN,
    request_attributes(Protocol.EMBEDDINGS),
    response_attributes(Protocol.EMBEDDINGS),
    lambda _: {},  # embeddings have no streams
    "data",
)
_TARGETS: Final = (
    ClientMethods(
        "openai.resources.chat.completions",
        ("Completions", "AsyncCompletions"),
        ("create", "parse"),
        recording_method(_CHAT),
    ),
    ClientMethods(
        "openai.resources.responses.responses",
        ("Responses", "AsyncResponses"),
        ("create", "parse"),
        recording_method(_RESPONSES),
    ),
    ClientMethods(
        "openai.resources.embeddings",
        ("Embeddings", "AsyncEmbeddings"),
        ("create",),
        recording_method(_EMBEDDINGS),
    ),
)


def instrument_openai() -> bool:
    """Record the calls of the `openai` client; return False if the client is not installed. Idempotent."""
    return patch_client("openai", _TARGETS)


def uninstrument_openai() -> None:
    """Restore the original methods of the `openai` client."""
    unpatch_client(_TARGETS)
