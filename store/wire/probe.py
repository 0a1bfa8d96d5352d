"""Single requests to a server, without the client: whether a program answers, and which program it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, cast
from urllib.parse import urlsplit

from store.wire.paths import HEALTH, STORE

_MOST_BYTES: Final = 65_536
_PROBE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """The response to a request."""

    status: int
    body: Mapping[str, Any]
    """The JSON object in the body; empty if the body is not a JSON object."""
    date: str | None = None
    """The header Date, which contains the time of the server."""


def get(url: str, *, api_key: str | None = None, seconds: float) -> ProbeResponse:
    """Send a GET request and return the response. The call blocks for a few times `seconds` at most.

    Args:
        url: the complete URL, http or https.
        api_key: the key to send; None for a request without a key.
        seconds: the maximum wait for the connection, and for each part of the response.

    Raises:
        OSError: the server cannot be reached or does not answer in time, or its certificate is not trusted.
        HTTPException: the program at the address does not speak HTTP.
    """
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        connection.request("GET", parts.path or "/", headers=headers)
        response = connection.getresponse()
        text = response.read(_MOST_BYTES)
    finally:
        connection.close()
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return ProbeResponse(
        response.status, cast("dict[str, Any]", body) if isinstance(body, dict) else {}, response.getheader("Date")
    )


def who_answers(host: str, port: int) -> str:
    """Return a description of the program that answers on a port."""
    address = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 (compared, not bound)
    root = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    try:
        health = get(root + HEALTH, seconds=_PROBE_SECONDS)
    except (OSError, HTTPException):
        return "a program that does not speak HTTP"
    if health.status != 200 or health.body.get("status") != "ok":
        return f"another HTTP server (GET {HEALTH}: {health.status})"
    try:
        info = get(root + STORE, seconds=_PROBE_SECONDS)
    except (OSError, HTTPException):
        info = ProbeResponse(503, {})
    if info.status == 200 and "store_id" in info.body:
        return f"a Rollbook server of the store {info.body['store_id']}, partition {info.body.get('partition')}"
    return "another server of the Agent-lightning protocol"
