"""Instrumentation of the `openai` client. It records the client's calls as spans of the current attempt.

The instrumentation records chats, completions, calls of the Responses API, and embeddings. It patches only public
classes of the client.
"""

from __future__ import annotations

from typing import Final

from store.model_calls import Protocol
from store.training.model_clients.client_calls import RecordedApi, recording_conversion, recording_method
from store.training.model_clients.client_patches import ClientMethods, patch_client, unpatch_client

_CHAT: Final = RecordedApi(Protocol.CHAT, "choices")
_COMPLETIONS: Final = RecordedApi(Protocol.COMPLETIONS, "choices")
_RESPONSES: Final = RecordedApi(Protocol.RESPONSES, "output")
_EMBEDDINGS: Final = RecordedApi(Protocol.EMBEDDINGS, "data")
_TARGETS: Final = (
    ClientMethods(
        "openai.resources.chat.completions",
        ("Completions", "AsyncCompletions"),
        ("create", "parse"),
        recording_method(_CHAT),
    ),
    ClientMethods(
        "openai.resources.completions",
        ("Completions", "AsyncCompletions"),
        ("create",),
        recording_method(_COMPLETIONS),
    ),
    *(
        ClientMethods(module, ("Responses", "AsyncResponses"), ("create", "parse"), recording_method(_RESPONSES))
        for module in ("openai.resources.responses.responses", "openai.resources.beta.responses.responses")
    ),
    ClientMethods(
        "openai.resources.embeddings",
        ("Embeddings", "AsyncEmbeddings"),
        ("create",),
        recording_method(_EMBEDDINGS),
    ),
    ClientMethods("openai._response", ("APIResponse", "AsyncAPIResponse"), ("parse",), recording_conversion),
)


def instrument_openai() -> bool:
    """Record the calls of the `openai` client; return False if the client is not installed. Idempotent."""
    return patch_client("openai", _TARGETS)


def uninstrument_openai() -> None:
    """Restore the original methods of the `openai` client."""
    unpatch_client(_TARGETS)
