"""Reader of OTLP in JSON: traces become rollouts. Decision 102.

Spans of `rollbook export otlp` and of the tracer have the ids of their rollout and attempt, and are grouped by these
ids. Other spans are grouped by trace: each trace becomes a rollout with one attempt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast, get_args

import orjson

from store.imports.batches import Record
from store.imports.otlp_files import spans_in
from store.imports.report import Skipped
from store.imports.rollouts import UNENDED, ForeignAttempt, ForeignRollout
from store.imports.span_groups import GroupedSpan, SpanGroups
from store.models import AttemptStatus, RolloutMode, Span
from store.semconv import (
    ATTEMPT_NUMBER,
    ATTEMPT_STATUS,
    GROUP_KEY,
    INPUT,
    METADATA,
    MODE,
    STEP_KEY,
)

_INPUTS: Final = ("input.value", "gen_ai.input.messages", "traceloop.entity.input")
"""Attributes of the root of a foreign trace. The first one that the root has is the input of the rollout."""
_SERVICE: Final = "service.name"
_ENDED: Final = frozenset({"succeeded", "failed", "timeout", "unresponsive"})
_MODES: Final[frozenset[str]] = frozenset(get_args(RolloutMode))


def read_otlp(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Record]:
    """Yield the rollouts in files with OTLP in JSON, for `import_rollouts`.

    All files are read before the first rollout is yielded, because the spans of a trace may be in any of the files.

    Args:
        paths: files, and directories of files. A file contains one request per line, or one request as a whole. It may
            be compressed with gzip.

    Raises:
        OSError: a path cannot be read.
    """
    with SpanGroups() as groups:
        for entry in spans_in(paths):
            if isinstance(entry, Skipped):
                yield entry
                continue
            span = entry.span
            key = f"rollout:{span.rollout_id}" if span.rollout_id else f"trace:{span.trace_id}"
            if (place := groups.add(key, entry)) is not None:
                reason = f"span {span.span_id} differs from the span with the same ids at {place}"
                yield Skipped(place=entry.place, reason=reason)
        for key, spans in groups.rollouts():
            running = next((entry for entry in spans if entry.added.get(ATTEMPT_STATUS) in UNENDED), None)
            if running is None:
                yield _rollout(key, spans)
            else:
                reason = f"attempt {running.span.attempt_id} was running when it was exported; export it after its end"
                yield Skipped(place=running.place, reason=reason)


def _rollout(key: str, spans: Sequence[GroupedSpan]) -> ForeignRollout:
    by_attempt: dict[str, list[GroupedSpan]] = {}
    for entry in spans:
        by_attempt.setdefault(entry.span.attempt_id, []).append(entry)
    attempts = sorted((sorted(entries, key=_place) for entries in by_attempt.values()), key=_attempt_place)
    added: dict[str, Any] = {}
    for entry in spans:
        added |= entry.added
    root = _root([entry.span for entry in attempts[-1]])
    is_exported = bool(added)
    starts, ends = zip(*((entry.span.start_time, entry.span.end_time) for entry in spans), strict=True)
    group, step, mode = added.get(GROUP_KEY), added.get(STEP_KEY), added.get(MODE)
    return ForeignRollout(
        key=key,
        place=spans[0].place,
        input=_json(added.get(INPUT)) if is_exported else _input(root),
        attempts=[_attempt(entries) for entries in attempts],
        mode=cast("RolloutMode", mode) if mode in _MODES else None,
        metadata=_object(_json(added.get(METADATA))) if is_exported else _described(root),
        group=group if isinstance(group, str) else None,
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        start_time=min((start for start in starts if start is not None), default=None),
        end_time=max((end for end in ends if end is not None), default=None),
        sha256=_hash(spans),
    )


def _place(entry: GroupedSpan) -> tuple[int, float]:
    """Return the sort key of a span in its attempt: its number, then its start."""
    return entry.span.sequence_id, entry.span.start_time or 0.0


def _attempt_place(entries: Sequence[GroupedSpan]) -> tuple[int, int, float]:
    number = entries[0].added.get(ATTEMPT_NUMBER)
    return number if isinstance(number, int) else 0, *_place(entries[0])


def _attempt(entries: Sequence[GroupedSpan]) -> ForeignAttempt:
    """Return an attempt. If an export did not add its status, the status of its root span determines it."""
    spans = [entry.span for entry in entries]
    status = entries[0].added.get(ATTEMPT_STATUS)
    if status is None:
        return ForeignAttempt("failed" if _root(spans).status.status_code == "ERROR" else "succeeded", spans)
    return ForeignAttempt(cast("AttemptStatus", status) if status in _ENDED else "failed", spans)


def _root(spans: Sequence[Span]) -> Span:
    """Return the first span whose parent is not among the spans, or else the first span."""
    ids = {span.span_id for span in spans}
    return next((span for span in spans if span.parent_id not in ids), spans[0])


def _input(root: Span) -> Any:
    value = next((root.attributes[name] for name in _INPUTS if name in root.attributes), None)
    parsed = _json(value)
    return value if parsed is None else parsed


def _described(root: Span) -> dict[str, Any]:
    service = root.resource.attributes.get(_SERVICE)
    return {"name": root.name} | ({} if service is None else {_SERVICE: service})


def _json(value: object) -> Any:
    """Return the value of a JSON text; None for other values."""
    try:
        return orjson.loads(value) if isinstance(value, str) else None
    except orjson.JSONDecodeError:
        return None


def _object(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


def _hash(spans: Sequence[GroupedSpan]) -> str:
    """Return a hash of spans that does not depend on their order in the files."""
    digests = sorted(sha256(entry.span.model_dump_json().encode()).digest() for entry in spans)
    return sha256(b"".join(digests)).hexdigest()
