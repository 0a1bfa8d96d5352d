"""Instrumentation of the `anthropic` client. It records calls of the Messages API as spans of the current attempt."""

from __future__ import annotations

from typing import Final

from store.model_calls import Protocol
from store.training.model_clients.client_calls import (
    RecordedApi,
    recording_conversion,
    recording_manager,
    recording_method,
)
from store.training.model_clients.client_patches import ClientMethods, patch_client, unpatch_client

_MESSAGES: Final = RecordedApi(Protocol.MESSAGES, "content")
_CLASSES: Final = ("Messages", "AsyncMessages")
_TARGETS: Final = (
    *(
        ClientMethods(module, _CLASSES, methods, wrap)
        for module in ("anthropic.resources.messages.messages", "anthropic.resources.beta.messages.messages")
        for methods, wrap in (
            (("create", "parse"), recording_method(_MESSAGES)),
            (("stream",), recording_manager(_MESSAGES)),
        )
    ),
    ClientMethods("anthropic._response", ("APIResponse", "AsyncAPIResponse"), ("parse",), recording_conversion),
)


def instrument_anthropic() -> bool:
    """Record the Messages API calls of the `anthropic` client; return False without the client. Idempotent."""
    return patch_client("anthropic", _TARGETS)


def uninstrument_anthropic() -> None:
    """Restore the original methods of the `anthropic` client."""
    unpatch_client(_TARGETS)
