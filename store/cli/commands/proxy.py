"""`rollbook proxy`: the LLM proxy alone, for agents in any language."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from store import open_store
from store.cli.options import DEFAULT_DB, Db
from store.cli.output.printing import line
from store.client import address
from store.db.url import parse
from store.errors import Invalid
from store.llm_proxy import Backend, LLMProxy
from store.llm_proxy.backends import check_names
from store.server.process.listener import is_loopback

app = typer.Typer()

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ProxyOptions:
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


@app.command(rich_help_panel="Train")
def proxy(
    *,
    backend: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=URL[,MODEL…]", help="A model server, with its /v1, and its models; may be repeated."
        ),
    ],
    db: Db = DEFAULT_DB,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Record in this store, or server, whatever --db says.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any that is free.")] = 4748,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Ask the backends for token ids, as vLLM gives them.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_PROXY_KEY", metavar="KEY", help="What clients must send as their key."),
    ] = None,
    backend_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_BACKEND_KEY", metavar="KEY", help="Sent to the backends, not the client's."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Answer other machines without a key.")] = False,
) -> None:
    """Pass agents' calls on to their models, each recorded for its attempt, until Ctrl+C or SIGTERM."""
    settings = ProxyOptions(
        store=store or db,
        backends=backend,
        host=host,
        port=port,
        token_ids=token_ids,
        insecure=insecure,
        api_key=api_key,
        backend_key=backend_key,
    )
    if settings.api_key is None and not settings.insecure and not is_loopback(settings.host):
        raise Invalid(
            "--host",
            f"{settings.host} is reached from other machines; set ROLLBOOK_PROXY_KEY, which clients then send as their"
            " key, listen on 127.0.0.1, or say --insecure",
        )
    backends = check_names([_backend(given, settings) for given in settings.backends])
    asyncio.run(_serve(settings, backends))


def _backend(given: str, settings: ProxyOptions) -> Backend:
    name, equals, rest = given.partition("=")
    url, *models = rest.split(",")
    if not equals or not name or "" in models:
        raise Invalid("--backend", f"{given!r} is not of the form NAME=URL or NAME=URL,model,model")
    try:
        return Backend(name, url, api_key=settings.backend_key, models=models, supports_token_ids=settings.token_ids)
    except ValueError as error:
        raise Invalid("--backend", f"{given!r} is none: {error}") from None


async def _serve(settings: ProxyOptions, backends: Sequence[Backend]) -> None:
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


def _introduce(settings: ProxyOptions, serving: LLMProxy) -> None:
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
