"""Spans that earlier versions recorded, and the results of the readers of spans then and today.

`data/old_spans.json` has a line for each attempt. Its spans were recorded by commit 25305047, through the proxy, the
instrumentation of the clients and LangChain's handler, or have the names of other tracers. A result is

- a list, if today's result is that of commit 25305047;
- the name of another view and reader with the same result, such as `all/triplets`;
- an object, if the result has changed on purpose: `before`, `now` and the `reason`.

After a change on purpose, `python -m tests.adapters.old_spans REASON [NAME …]` writes every result that differs, with
this reason. Add spans of a new version as new lines; the spans of existing lines never change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from store.adapters.messages import TraceToMessages
from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
from store.dashboard.views.transcript import transcript
from store.models import Span

FILE: Final = Path(__file__).parent / "data" / "old_spans.json"
READERS: Final[Mapping[str, Callable[[Sequence[Span]], Any]]] = {
    "triplets": lambda spans: [triplet.model_dump() for triplet in TracerTraceToTriplet().adapt(spans)],
    "proxy triplets": lambda spans: [triplet.model_dump() for triplet in LlmProxyTraceToTriplet().adapt(spans)],
    "messages": lambda spans: TraceToMessages().adapt(spans),
    "transcript": lambda spans: [_compact(entry) for entry in transcript(spans)],
}
_COMMON: Final[Mapping[str, Any]] = {
    "rollout_id": "ro-1",
    "attempt_id": "at-1",
    "trace_id": "1" * 32,
    "parent_id": None,
    "status": {"status_code": "OK"},
    "events": [],
    "links": [],
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}
_POSITION: Final = frozenset({"span_id", "sequence_id", "at", "seconds"})
_YOUNGER: Final = frozenset({"tool_call_id", "media", "results", "same_as", "speech"})
"""Fields of entries that are younger than the file."""


def results(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the result of each reader for each view of spans, as JSON values."""
    return {
        view: {name: orjson.loads(orjson.dumps(read(spans))) for name, read in READERS.items()}
        for view, spans in _views([Span.model_validate({**_COMMON, **row}) for row in rows]).items()
    }


def _views(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return all spans, those without the proxy's recordings, and those without the agent's recordings of calls."""
    proxied = [span for span in spans if "agl.call.backend" in span.attributes]
    if not proxied:
        return {"all": list(spans)}
    calls = [span for span in spans if any(name.startswith("gen_ai.re") for name in span.attributes)]
    return {
        "all": list(spans),
        "client": [span for span in spans if span not in proxied],
        "proxy": [span for span in spans if span in proxied or span not in calls],
    }


def _compact(value: Any) -> Any:
    """Return the fields of a dataclass that differ from their defaults, without the position of the span."""
    if is_dataclass(value):
        parts: list[tuple[Any, Any]] = [
            (field, getattr(value, field.name)) for field in fields(value) if field.name not in _POSITION | _YOUNGER
        ]
        return {
            field.name: _compact(part) for field, part in parts if field.default is MISSING or part != field.default
        }
    return [_compact(part) for part in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def read_file() -> Iterator[Any]:
    """Return the attempts of the file."""
    return map(orjson.loads, FILE.read_bytes().splitlines())


def expected(recorded: Mapping[str, Any], view: str, reader: str) -> tuple[Any, Any, str | None]:
    """Return a result of earlier versions, the expected result of today, and the reason if they differ."""
    value = recorded[view][reader]
    if isinstance(value, str):
        return expected(recorded, *value.split("/"))
    if isinstance(value, dict):
        change = cast("dict[str, Any]", value)
        return change["before"], change["now"], change["reason"]
    return value, value, None


def main(reason: str, *names: str) -> None:
    """Write every result that differs from the file, with the reason for it; of all attempts, or of those named."""
    lines: list[bytes] = []
    for attempt in read_file():
        recorded = attempt["results"]
        for view, readers in results(attempt["spans"]).items():
            for reader, today in readers.items():
                before, now, _ = expected(recorded, view, reader)
                if today != now and attempt["name"] in (names or (attempt["name"],)):
                    recorded[view][reader] = {"reason": reason, "before": before, "now": today}
        lines.append(orjson.dumps(attempt, option=orjson.OPT_APPEND_NEWLINE))
    FILE.write_bytes(b"".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
