"""Failures that an agent did not cause: the store, a proxy or a model server could not be reached (decision 87).

An endpoint is the address of a model in the resources of an attempt.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from store.errors import StoreError
from store.models import LLM, ProxyLLM

if TYPE_CHECKING:
    from store.models import AttemptedRollout, NamedResources, ResourcesUpdate
    from store.training.running.outcome import Outcome

logger = logging.getLogger("store.training.runner")

Address = tuple[str, int]

_PROBE_SECONDS: Final = 1.0
_LONGEST_CHAIN: Final = 50
_PORTS: Final = {"http": 80, "https": 443}
_BROKEN: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_UNAVAILABLE: Final = frozenset({502, 503, 504})
# The names of the errors that HTTP clients raise for a failed connection. Names avoid imports of the clients.
_CONNECTION_ERRORS: Final = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "ConnectTimeout",
        "ConnectionError",
        "ConnectionTimeoutError",
        "NetworkError",
        "NewConnectionError",
        "ProtocolError",
        "URLError",
    }
)

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 30.0
_CHECK_SECONDS: Final = 0.25
_REPORTED_SECONDS: Final = 1.0


async def unreachable_part(error: BaseException, resources: NamedResources) -> str | None:
    """Return a description of the part whose absence caused an error of an agent; None if the agent caused the error.

    The part is the store, if it reported that it is unavailable. It is an endpoint, if the connection to the endpoint
    failed, if the endpoint answered 502, 503 or 504, or if it is a proxy that accepts no connections.

    Args:
        error: the error that the agent raised; the errors that it wraps are considered too.
        resources: the resources of the attempt.
    """
    endpoints, proxies = _endpoints(resources)
    errors = list(_chain(error))
    for failure in errors:
        if (part := _named_part(failure, endpoints)) is not None:
            return part
    doubtful = proxies
    failures = [failure for failure in errors if not isinstance(failure, StoreError) and _is_connection_error(failure)]
    # An error that names another server explains the errors without an address that it wraps.
    if failures and not any(_address(failure) for failure in failures):
        if proxies and any(
            isinstance(failure, _BROKEN) or type(failure).__name__ == "ServerDisconnectedError" for failure in failures
        ):
            return f"the connection to {' or '.join(sorted(proxies.values()))} was lost"
        doubtful = endpoints
    for address, endpoint in doubtful.items():
        if not await asyncio.to_thread(_accepts, address):
            return f"{endpoint} cannot be reached"
    return None


def _named_part(error: BaseException, endpoints: dict[Address, str]) -> str | None:
    """Return a description of the store or the endpoint that an error names as unavailable; None if it names none."""
    if isinstance(error, StoreError):
        return f"the store is not available: {error}" if error.retryable else None
    address = _address(error)
    if address not in endpoints:
        return None
    if (status := _status(error)) in _UNAVAILABLE:
        return f"{endpoints[address]} answered {status}"
    return f"{endpoints[address]} cannot be reached" if _is_connection_error(error) else None


def _endpoints(resources: NamedResources) -> tuple[dict[Address, str], dict[Address, str]]:
    """Return the endpoints of all models and those of the models behind proxies, by address."""
    models = {
        address: resource
        for resource in resources.values()
        if isinstance(resource, LLM) and (address := address_of(resource.endpoint)) is not None
    }
    proxies = {address: llm.endpoint for address, llm in models.items() if isinstance(llm, ProxyLLM)}
    return {address: llm.endpoint for address, llm in models.items()}, proxies


class Pause:
    """Pause of a runner after failures of infrastructure, so that it does not fail a whole queue.

    The pause ends as soon as an endpoint accepts connections again, or the resources have another endpoint. Otherwise
    it lasts 0.1 s after the first failure, twice as long after each further failure, and at most 30 s.

    Args:
        resources_of: function that returns the resources with an id, or the latest resources for None.
    """

    def __init__(self, resources_of: Callable[[str | None], Awaitable[ResourcesUpdate | None]]) -> None:
        self._resources_of = resources_of
        self._failures = 0
        self._failed: AttemptedRollout | None = None
        self._is_waiting = False

    def note(self, rollout: AttemptedRollout, outcome: Outcome) -> None:
        """Note the end of an attempt."""
        if outcome.reason == "infrastructure":
            self._failures, self._failed = self._failures + 1, rollout
        elif outcome.reason in {None, "error"}:
            self._failures, self._failed = 0, None

    @property
    def is_due(self) -> bool:
        """Whether the runner has to wait before its next claim."""
        return self._is_waiting or self._failed is not None

    async def wait(self, stopping: asyncio.Future[Any]) -> None:
        """Wait until rollouts may be claimed, or the runner is stopped."""
        failed, self._failed = self._failed, None
        if failed is None:
            return
        self._is_waiting = True
        try:
            await self._pause(failed, stopping)
        finally:
            self._is_waiting = False

    async def _pause(self, failed: AttemptedRollout, stopping: asyncio.Future[Any]) -> None:
        seconds = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 16), _LONGEST_PAUSE_SECONDS)
        level = logging.WARNING if seconds >= _REPORTED_SECONDS else logging.INFO
        logger.log(level, "no rollouts are claimed for up to %g s, because models cannot be reached", seconds)
        began = time.monotonic()
        was_down = False
        while not stopping.done() and (remaining := began + seconds - time.monotonic()) > 0:
            is_down = not await self._accept(failed.resources_id)
            if was_down and not is_down:
                return
            was_down = was_down or is_down
            await asyncio.wait({stopping}, timeout=min(remaining, _CHECK_SECONDS))

    async def _accept(self, resources_id: str | None) -> bool:
        """Return whether all endpoints of the current version of the resources accept connections."""
        with suppress(StoreError):
            update = await self._resources_of(resources_id)
            endpoints = {} if update is None else _endpoints(update.resources)[0]
            for address in endpoints:
                if not await asyncio.to_thread(_accepts, address):
                    return False
            return True
        return False


def address_of(url: str) -> Address | None:
    """Return the host and the port of a URL, or None if it is not the URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def _accepts(address: Address) -> bool:
    try:
        with socket.create_connection(address, timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it wraps, in groups and as causes and contexts."""
    waiting, visited = [error], set[int]()
    while waiting and len(visited) < _LONGEST_CHAIN:
        current = waiting.pop(0)
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        waiting += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        if isinstance(current, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", current).exceptions


def _is_connection_error(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if _status(error) is not None:
        return False
    return isinstance(error, ConnectionError) or bool(names & _CONNECTION_ERRORS)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of an HTTP client."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            if isinstance(value := getattr(holder, name, None), int):
                return value
    return None


def _address(error: BaseException) -> Address | None:
    """Return the host and the port that an HTTP client was calling, or None if the error does not contain them."""
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return host, port
    for name in ("request", "request_info", "response"):
        # httpx raises RuntimeError if an error has no request.
        with suppress(Exception):
            url = getattr(getattr(error, name, None), "url", None)
            if url is not None:
                return address_of(str(url))
    url = getattr(error, "url", None)
    return address_of(url) if isinstance(url, str) else None
