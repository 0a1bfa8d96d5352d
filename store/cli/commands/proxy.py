"""`rollbook proxy`: a standalone LLM proxy, which records the calls of agents in any language."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.options import DEFAULT_DB, Db, StoreAlias
from store.cli.output.printing import line
from store.cli.store_context import check_server
from store.db.url import parse
from store.errors import Invalid
from store.runtime.urls import scheme_of

if TYPE_CHECKING:
    from store.llm_proxy import Backend, LLMProxy

app = typer.Typer()

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """The options of `rollbook proxy`."""

    store: str
    """The URL of the store in which the proxy records the calls."""
    backends: Sequence[str]
    """The model servers, each as `NAME=URL` or `NAME=URL,model,model`.

    With `NAME=PROVIDER+URL`, LiteLLM translates the calls for this provider.
    """
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
            metavar="NAME=[PROVIDER+]URL[,MODEL…]",
            help="A model server: its URL with /v1, and its models; may be repeated. With a provider, as in"
            " NAME=anthropic+https://api.anthropic.com, LiteLLM translates the calls.",
        ),
    ],
    db: Db = DEFAULT_DB,
    store: StoreAlias = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 chooses a free one.")] = 4748,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Request token ids from the backends, as vLLM returns them.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_PROXY_KEY", metavar="KEY", help="The key that clients must send."),
    ] = None,
    backend_key: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLBOOK_BACKEND_KEY",
            metavar="KEY",
            help="The key to send to the backends, instead of the client's key.",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without requiring a key.")] = False,
) -> None:
    """Forward the calls of agents to model servers, and record each call in its attempt, until Ctrl+C or SIGTERM."""
    from store.llm_proxy.backends import check_names
    from store.wire.listener import is_loopback

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
            f"{settings.host} is reachable from other machines; set ROLLBOOK_PROXY_KEY to a key that clients must send,"
            " listen on 127.0.0.1, or give --insecure",
        )
    backends = check_names([_backend(text, settings) for text in settings.backends])
    asyncio.run(_serve(settings, backends))


def _backend(text: str, settings: ProxyOptions) -> Backend:
    from store.llm_proxy import Backend

    name, equals, rest = text.partition("=")
    url, *models = rest.split(",")
    if not equals or not name or "" in models:
        raise Invalid("--backend", f"{text!r} is not of the form NAME=URL or NAME=URL,model,model")
    provider, plus, translated = url.partition("+")
    is_translated = bool(plus) and "/" not in provider
    try:
        return Backend(
            name,
            translated if is_translated else url,
            api_key=settings.backend_key,
            models=models,
            supports_token_ids=settings.token_ids,
            provider=provider if is_translated else None,
        )
    except ValueError as error:
        raise Invalid("--backend", f"{text!r} is not a backend: {error}") from None


async def _serve(settings: ProxyOptions, backends: Sequence[Backend]) -> None:
    from store import open_store
    from store.llm_proxy import LLMProxy

    stopped = asyncio.Event()
    await check_server(settings.store)
    async with open_store(settings.store, create=False) as store:
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
            with _stopped_by_signals(stopped):
                _introduce(settings, serving)
                await stopped.wait()


@contextlib.contextmanager
def _stopped_by_signals(stopped: asyncio.Event) -> Generator[None]:
    loop = asyncio.get_running_loop()
    for number in _STOPS:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield
    finally:
        # The handlers are removed, so that a second Ctrl+C stops the process without waiting for running calls.
        for number in _STOPS:
            loop.remove_signal_handler(number)


def _introduce(settings: ProxyOptions, serving: LLMProxy) -> None:
    at = serving.endpoint
    line(f"rollbook proxy at {at}, recording in {_store_name(settings.store)}")
    for backend in serving.backends:
        line(f"  {backend.name}: {', '.join(backend.models) or 'every model'} at {backend.root}")
    line("To record an agent in any language, set this as its base URL, for example in OPENAI_BASE_URL:")
    line(f"  {at}/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1")
    line(f"or with the headers x-rollout-id and x-attempt-id at {at}/v1. Calls without ids are not recorded.")
    # A program that reads the output through a pipe waits for these lines.
    sys.stdout.flush()


def _store_name(url: str) -> str:
    from store.wire import server_url

    is_server = scheme_of(url) in server_url.SCHEMES
    return server_url.parse(url).base if is_server else parse(url).shown
