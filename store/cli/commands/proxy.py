"""`rollbook proxy`: the LLM proxy alone, for agents in any language."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from store import open_store
from store.cli.output.printing import line
from store.client import address
from store.db.url import parse
from store.errors import Invalid
from store.llm_proxy import Backend, LLMProxy
from store.llm_proxy.backends import check_names
from store.server.process.listener import is_loopback

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a proxy was told."""

    store: str
    """The URL of what it records in."""
    backends: Sequence[str]
    """Each `NAME=URL` or `NAME=URL,model,model`."""
    host: str
    port: int
    token_ids: bool
    insecure: bool
    api_key: str | None = field(default=None, repr=False)
    backend_key: str | None = field(default=None, repr=False)


def proxy(settings: Settings) -> None:
    """Pass calls on and record them until Ctrl+C or SIGTERM; calls in flight are answered then.

    Raises:
        Invalid: a backend is of another form, two have one name, or the host is reached by others and there is no key.
        NotFound: there is no such store.
        PortTaken: something listens there; the text names it.
    """
    if settings.api_key is None and not settings.insecure and not is_loopback(settings.host):
        raise Invalid(
            "--host",
            f"{settings.host} is reached from other machines; set ROLLBOOK_PROXY_KEY, which clients then send as their"
            " key, listen on 127.0.0.1, or say --insecure",
        )
    backends = check_names([_backend(given, settings) for given in settings.backends])
    asyncio.run(_serve(settings, backends))


def _backend(given: str, settings: Settings) -> Backend:
    name, equals, rest = given.partition("=")
    url, *models = rest.split(",")
    if not equals or not name or "" in models:
        raise Invalid("--backend", f"{given!r} is not of the form NAME=URL or NAME=URL,model,model")
    try:
        return Backend(name, url, api_key=settings.backend_key, models=models, supports_token_ids=settings.token_ids)
    except ValueError as error:
        raise Invalid("--backend", f"{given!r} is none: {error}") from None


async def _serve(settings: Settings, backends: Sequence[Backend]) -> None:
    stopped = asyncio.Event()
    async with await open_store(settings.store, create=False) as store:
        serving = LLMProxy(
            settings.port,
            store=store,
            host=settings.host,
            backends=backends,
            launch_mode="asyncio",
            api_key=settings.api_key,
            insecure=settings.insecure,
        )
        async with serving:
            with _told_by_signals(stopped):
                _introduce(settings, serving)
                await stopped.wait()


@contextlib.contextmanager
def _told_by_signals(stopped: asyncio.Event) -> Generator[None]:
    loop = asyncio.get_running_loop()
    for each in _STOPS:
        loop.add_signal_handler(each, stopped.set)
    try:
        yield
    finally:
        # The second Ctrl+C does not wait for calls in flight.
        for each in _STOPS:
            loop.remove_signal_handler(each)


def _introduce(settings: Settings, serving: LLMProxy) -> None:
    at = serving.endpoint
    line(f"rollbook proxy at {at}, recording in {_shown(settings.store)}")
    for backend in serving.backends:
        line(f"  {backend.name}: {', '.join(backend.models) or 'every model'} at {backend.root}")
    line("An agent in any language is recorded with this as its base URL, which OPENAI_BASE_URL may hold:")
    line(f"  {at}/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1")
    line(f"or with the headers x-rollout-id and x-attempt-id at {at}/v1; without ids it is answered, not recorded.")
    # Whoever reads it through a pipe waits for it.
    sys.stdout.flush()


def _shown(url: str) -> str:
    is_server = urlsplit(url).scheme in address.SCHEMES
    return address.parse(url).base if is_server else parse(url).shown
