"""`rollbook export otlp --to`: spans to a collector of OpenTelemetry."""

from __future__ import annotations

import asyncio
import signal
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store.cli.errors import FAILED
from store.cli.options import parameter
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.progress import progress_shown
from store.cli.output.times import duration
from store.cli.query_options import conditions_in
from store.cli.store_context import run_reading
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.exports import CollectorOptions, SendReport
    from store.interface.store import Store

_To = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send the spans to this collector over OTLP/HTTP, instead of writing files."),
]
_Cursor = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        dir_okay=False,
        help="With --to: send the spans after the place in the log that FILE contains, and store the new place there.",
    ),
]
_Forward = Annotated[
    bool, typer.Option("--forward", help="With --cursor: also wait for new spans, until Ctrl+C or SIGTERM.")
]
_Header = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A header for the collector; may be repeated. Put secrets into OTEL_EXPORTER_OTLP_HEADERS instead.",
    ),
]
_Encoding = Annotated[str, typer.Option(metavar="ENCODING", help="What is sent to the collector: protobuf or json.")]
_Compression = Annotated[str, typer.Option(metavar="NAME", help="How it is compressed: gzip or none.")]
_Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="The longest time of a request to the collector.")]


def collector_parameters() -> list[Parameter]:
    """Return the options for a collector, as parameters of a command."""
    return [
        parameter("to", _To),
        parameter("cursor", _Cursor),
        parameter("forward", _Forward, default=False),
        parameter("header", _Header),
        parameter("encoding", _Encoding, "protobuf"),
        parameter("compression", _Compression, "gzip"),
        parameter("timeout", _Timeout, 10.0),
    ]


def send_to_collector(options: dict[str, Any]) -> None:
    """Send spans to a collector as the options of a command state, and print a report.

    Raises:
        typer.BadParameter: options do not fit together.
        typer.Exit: the collector has refused spans.
    """
    conditions = conditions_in(options, RolloutQuery)
    redact: list[str] = options["redact"] or []
    if options["forward"] and options["cursor"] is None:
        raise typer.BadParameter("needs --cursor, a file for the place in the log", param_hint="--forward")
    if options["cursor"] is None:
        query = RolloutQuery.of(**conditions, as_at=options["as_at"])
        report = _send(options, {"query": query, "redact": redact})
    else:
        if options["as_at"] is not None or any(value is not None for value in conditions.values()):
            raise typer.BadParameter(
                "sends the spans of all rollouts; leave the conditions and --as-at out", param_hint="--cursor"
            )
        report = _forward(options, {"redact": redact, "follow": options["forward"]})
    _print(report, as_json=options["json"])
    if report.refused:
        raise typer.Exit(FAILED)


def _send(options: dict[str, Any], arguments: dict[str, Any]) -> SendReport:
    from store.exports import send_spans

    settings = _collector_options(options)
    with progress_shown(is_quiet=options["json"]) as on_progress:
        return run_reading(
            options["db"],
            lambda store: send_spans(
                store, options["to"], options=settings, on_notice=note, on_progress=on_progress, **arguments
            ),
        )


def _forward(options: dict[str, Any], arguments: dict[str, Any]) -> SendReport:
    from store.exports import forward_spans

    # A call without --forward ends if the collector is down for long.
    settings = _collector_options(options, retry_seconds=None if options["forward"] else 300.0)

    async def forward(store: Store) -> SendReport:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            # A second signal ends the process at once, which loses nothing.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        try:
            return await forward_spans(
                store, options["to"], options["cursor"], options=settings, on_notice=note, stop=stop, **arguments
            )
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return run_reading(options["db"], forward)


def _collector_options(options: dict[str, Any], **further: Any) -> CollectorOptions:
    from store.exports import CollectorOptions

    headers: dict[str, str] = {}
    texts: list[str] = options["header"] or []
    for header in texts:
        name, equals, value = header.partition("=")
        if not equals:
            raise typer.BadParameter(f"{name!r} is not NAME=VALUE", param_hint="--header")
        headers[name.strip()] = value.strip()
    return CollectorOptions(
        headers=headers,
        encoding=options["encoding"],
        compression=options["compression"],
        timeout_seconds=options["timeout"],
        **further,
    )


def _print(report: SendReport, *, as_json: bool) -> None:
    if as_json:
        json_document(report.model_dump())
        return
    place = "" if report.position is None else f" of {report.rollouts:,} rollouts at position {report.position}"
    line(
        f"sent to {printable(report.to)}: {report.spans:,} spans{place}; {report.requests:,} requests in"
        f" {duration(report.seconds)}"
    )
    if report.refused:
        note(f"the collector has refused {report.refused:,} of the spans: {printable(report.refusal)}")
