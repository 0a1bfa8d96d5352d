"""Parsing of the proxy's URLs: the attempt that records the call, and the endpoint of the model server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from store.llm_proxy.refusals import Refusal

ROLLOUT_HEADER: Final = "x-rollout-id"
ATTEMPT_HEADER: Final = "x-attempt-id"
OWN_HEADERS: Final = frozenset({ROLLOUT_HEADER, ATTEMPT_HEADER, "x-sequence-id"})
"""Headers for the proxy, which it does not forward."""

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
    def is_recorded(self) -> bool:
        """Whether calls of the endpoint are recorded as spans."""
        return self not in {Endpoint.MODELS, Endpoint.COUNT_TOKENS}

    @property
    def is_anthropic(self) -> bool:
        """Whether the endpoint belongs to Anthropic's protocol."""
        return self in {Endpoint.MESSAGES, Endpoint.COUNT_TOKENS}


@dataclass(frozen=True, slots=True)
class CallAddress:
    """The endpoint of a request, and the attempt that records it."""

    endpoint: Endpoint
    path: str
    """The path below a backend's base URL, percent-encoded as in the request."""
    rollout_id: str | None = None
    attempt_id: str | None = None


def parse(method: str, raw_path: str, headers: Mapping[str, str]) -> CallAddress:
    """Return the address of a request; ids in the path take precedence over ids in headers.

    Raises:
        Refusal: 404 for a path that is not forwarded, 405 for a wrong method, 400 for one id without the other.
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
        offered = ", ".join(f"/v1/{each}" for each in Endpoint)
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
