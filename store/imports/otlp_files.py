"""Files with OTLP in JSON, as OpenTelemetry's file exporter and `rollbook export otlp` write them."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

import orjson

from store.imports.report import Skipped
from store.otel.json_format import decode_object
from store.otel.repair import repair
from store.otel.spans import Received, Undecodable
from store.runtime import lenient_json

_GZIP: Final = b"\x1f\x8b"
_SUFFIXES: Final = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_MANIFEST: Final = "manifest.json"
_LONGEST_LINE: Final = 256 * 1024 * 1024
_LARGEST_DOCUMENT: Final = 64 * 1024 * 1024
"""The most bytes of a file that is one document over several lines."""
_SIGNALS: Final = {"resourceLogs": "logs", "resourceMetrics": "metrics", "resourceProfiles": "profiles"}
_SPANS: Final = ("resourceSpans", "resource_spans")
_STARTS: Final = (b'{"resourceSpans"', b'{"resource_spans"')
"""The beginnings of the lines that exporters write."""


class FileSpan(NamedTuple):
    """A span in a file."""

    place: str
    """The file, and the number of the line if the file has one request per line."""
    span: Received


def spans_in(paths: Iterable[str | os.PathLike[str]]) -> Iterator[FileSpan | Skipped]:
    """Yield the spans in files and the parts that are not spans.

    Args:
        paths: files and directories. Files may be compressed with gzip. In directories and their subdirectories, all
            files `*.json`, `*.jsonl`, `*.json.gz` and `*.jsonl.gz` are read, except for the manifests of exports.

    Raises:
        OSError: a path cannot be read.
    """
    for path in paths:
        for file in _files(Path(path)):
            yield from _spans_of_file(file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = (file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.name != _MANIFEST)
    return sorted(file for file in files if file.is_file())


def _spans_of_file(path: Path) -> Iterator[FileSpan | Skipped]:
    with path.open("rb") as raw:
        is_compressed = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        file: Any = gzip.GzipFile(fileobj=raw) if is_compressed else raw
        number = 0
        try:
            for number, line in enumerate(_lines(file), 1):
                place = f"{path}:{number}"
                if len(line) > _LONGEST_LINE:
                    yield Skipped(place=place, reason=f"the line has more than {_LONGEST_LINE:,} bytes")
                    continue
                if not line.strip():
                    continue
                try:
                    request = lenient_json.loads(line)
                except orjson.JSONDecodeError as error:
                    if number == 1:
                        content = line + file.read(_LARGEST_DOCUMENT)
                        # Only in a file with several requests, a request begins after the beginning of the file.
                        if not any(content.lstrip().find(start, 1) > 0 for start in _STARTS):
                            yield from _spans_of_document(path, content)
                            return
                        file.seek(len(line))
                    end = "" if line.endswith(b"\n") else "; the file ends within it"
                    yield Skipped(place=place, reason=f"the line is not JSON ({error}){end}")
                    yield from _spans_after_torn(place, line)
                else:
                    yield from _spans_of_request(place, request)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield Skipped(place=f"{path}:{number + 1}", reason=f"the compressed file is damaged: {error}")


def _spans_after_torn(place: str, line: bytes) -> Iterator[FileSpan | Skipped]:
    """Yield the spans of a request that a program wrote behind the torn line of an earlier process."""
    start = max(line.rfind(start, 1) for start in _STARTS)
    if start > 0:
        try:
            request = lenient_json.loads(line[start:])
        except orjson.JSONDecodeError:
            return
        yield from _spans_of_request(place, request)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(_LONGEST_LINE + 1):
        yield line
        while len(line) > _LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE + 1)
            if not line:
                return


def _spans_of_document(path: Path, content: bytes) -> Iterator[FileSpan | Skipped]:
    """Yield the spans of a file that is one document over several lines."""
    try:
        if len(content) > _LARGEST_DOCUMENT:
            raise ValueError(f"a document over several lines may have {_LARGEST_DOCUMENT:,} bytes")  # noqa: TRY301
        request = lenient_json.loads(content)
    except ValueError as error:
        yield Skipped(place=str(path), reason=f"the file is not OTLP in JSON, neither by line nor as a whole: {error}")
        return
    yield from _spans_of_request(str(path), request)


def _spans_of_request(place: str, request: Any) -> Iterator[FileSpan | Skipped]:
    fields = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
    if not any(name in fields for name in _SPANS):
        signal = next((text for name, text in _SIGNALS.items() if name in fields), None)
        content = "is not a request of OTLP" if signal is None else f"contains {signal}, not spans"
        yield Skipped(place=place, reason=f"the JSON {content}; it has no resourceSpans")
        return
    try:
        traces = decode_object(request, accepts_foreign=True)
    except Undecodable as error:
        yield Skipped(place=place, reason=str(error))
        return
    for reason, count in traces.refused.reasons.items():
        yield Skipped(place=place, reason=reason if count == 1 else f"{count} spans: {reason}")
    for span in traces.received:
        # The values of a span that a store has exported are valid.
        if span.exported is None:
            repair(span)
        yield FileSpan(place, span)
