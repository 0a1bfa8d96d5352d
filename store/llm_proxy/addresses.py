"""Parsing of the proxy's URLs: the endpoint of the model server, and the attempt to which the call belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from store.llm_proxy.refusals import Refusal
from store.model_calls import Protocol

ROLLOUT_HEADER: Final = "x-rollout-id"
ATTEMPT_HEADER: Final = "x-attempt-id"
OWN_HEADERS: Final = frozenset({ROLLOUT_HEADER, ATTEMPT_HEADER, "x-sequence-id"})
"""Headers that are meant for the proxy. The proxy does not forward them."""

_SCOPED: Final = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(/.*)?")


class Endpoint(StrEnum):
    """The endpoints that the proxy forwards; the values are paths below a backend's base URL."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    COUNT_TOKENS = "messages/count_tokens"
    MODELS = "models"

    @property
    def protocol(self) -> Protocol | None:
        """The protocol of calls that are recorded as spans; None for an endpoint whose calls are not recorded."""
        return _PROTOCOLS.get(self)

    @property
    def is_anthropic(self) -> bool:
        """Whether the endpoint belongs to Anthropic's protocol."""
        return self in {Endpoint.MESSAGES, Endpoint.COUNT_TOKENS}


_PROTOCOLS: Final[Mapping[Endpoint, Protocol]] = {
    Endpoint.CHAT: Protocol.CHAT,
    Endpoint.COMPLETIONS: Protocol.COMPLETIONS,
    Endpoint.RESPONSES: Protocol.RESPONSES,
    Endpoint.EMBEDDINGS: Protocol.EMBEDDINGS,
    Endpoint.MESSAGES: Protocol.MESSAGES,
}


@dataclass(frozen=True, slots=True)
class CallAddress:
    """The endpoint of a request, and the ids of the attempt to which the call belongs; None without an attempt."""

    endpoint: Endpoint
    path: str
    """The path below a backend's base URL, percent-encoded as in the request."""
    rollout_id: str | None = None
    attempt_id: str | None = None


def parse(method: str, raw_path: str, headers: Mapping[str, str]) -> CallAddress:
    """Return the address of a request; ids in the path take precedence over ids in headers.

    Raises:
        Refusal: 404 if the proxy does not forward the path, 405 if the method is wrong, 400 if the headers contain only
            one of the two ids.
    """
    scoped = _SCOPED.fullmatch(raw_path)
    if scoped:
        rollout_id, attempt_id = unquote(scoped[1]), unquote(scoped[2])
        rest = scoped[3] or "/"
    else:
        rollout_id, attempt_id = headers.get(ROLLOUT_HEADER) or None, headers.get(ATTEMPT_HEADER) or None
        rest = raw_path
        if (rollout_id is None) != (attempt_id is None):
            raise Refusal(400, f"give {ROLLOUT_HEADER} and {ATTEMPT_HEADER} together, or neither of them")
    path = rest.removeprefix("/v1").strip("/")
    endpoint = _endpoint(path)
    if endpoint is None:
        offered = ", ".join(f"/v1/{offer}" for offer in Endpoint)
        raise Refusal(404, f"the proxy does not forward {raw_path}; it forwards {offered}, each also below "
                      "/rollout/<rollout_id>/attempt/<attempt_id>")  # fmt: skip
    if method != ("GET" if endpoint is Endpoint.MODELS else "POST"):
        raise Refusal(405, f"/v1/{endpoint} does not allow {method}")
    return CallAddress(endpoint, path, rollout_id, attempt_id)


def _endpoint(path: str) -> Endpoint | None:
    if path.startswith("models/"):
        return Endpoint.MODELS
    try:
        return Endpoint(path)
    except ValueError:
        return None
