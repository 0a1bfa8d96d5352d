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

from store.cli.option_groups import with_option_groups
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
    """Options of the proxy's socket and keys."""

    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 chooses a free one.")] = 4748
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Request token ids from the backends, as vLLM returns them.")
    ] = False
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLBOOK_PROXY_KEY", metavar="KEY", help="The key that clients must send."),
    ] = field(default=None, repr=False)
    backend_key: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLBOOK_BACKEND_KEY",
            metavar="KEY",
            help="The key to send to the backends, instead of the client's key.",
        ),
    ] = field(default=None, repr=False)
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without requiring a key.")] = False


@app.command(rich_help_panel="Train")
@with_option_groups
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
    options: ProxyOptions,
) -> None:
    """Forward the calls of agents to model servers, and record each call in its attempt, until Ctrl+C or SIGTERM."""
    from store.llm_proxy.backends import check_names
    from store.wire.listener import is_loopback

    if options.api_key is None and not options.insecure and not is_loopback(options.host):
        raise Invalid(
            "--host",
            f"{options.host} is reachable from other machines; set ROLLBOOK_PROXY_KEY to a key that clients must send,"
            " listen on 127.0.0.1, or give --insecure",
        )
    backends = check_names([_backend(text, options) for text in backend])
    asyncio.run(_serve(store or db, options, backends))


def _backend(text: str, options: ProxyOptions) -> Backend:
    """Return the backend of `NAME=URL`, `NAME=URL,model,model` or `NAME=PROVIDER+URL`."""
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
            api_key=options.backend_key,
            models=models,
            supports_token_ids=options.token_ids,
            provider=provider if is_translated else None,
        )
    except ValueError as error:
        raise Invalid("--backend", f"{text!r} is not a backend: {error}") from None


async def _serve(url: str, options: ProxyOptions, backends: Sequence[Backend]) -> None:
    from store import open_store
    from store.llm_proxy import LLMProxy

    stopped = asyncio.Event()
    await check_server(url)
    async with open_store(url, create=False) as store:
        serving = LLMProxy(
            options.port,
            store=store,
            host=options.host,
            backends=backends,
            launch_mode="asyncio",
            api_key=options.api_key,
            insecure=options.insecure,
        )
        async with serving:
            with _stopped_by_signals(stopped):
                _introduce(url, serving)
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


def _introduce(url: str, serving: LLMProxy) -> None:
    from store.wire import server_url

    endpoint = serving.endpoint
    store_name = server_url.parse(url).base if scheme_of(url) in server_url.SCHEMES else parse(url).shown
    line(f"rollbook proxy at {endpoint}, recording in {store_name}")
    for backend in serving.backends:
        line(f"  {backend.name}: {', '.join(backend.models) or 'every model'} at {backend.root}")
    line("To record an agent in any language, set this as its base URL, for example in OPENAI_BASE_URL:")
    line(f"  {endpoint}/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1")
    line(f"or with the headers x-rollout-id and x-attempt-id at {endpoint}/v1. Calls without ids are not recorded.")
    # A program that reads the output through a pipe waits for these lines.
    sys.stdout.flush()
