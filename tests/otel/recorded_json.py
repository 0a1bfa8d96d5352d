"""Recorded requests in OTLP's JSON, valid and malformed, each with the result of the decoder.

Most were chosen from 20,000 generated requests so that they differ in what is accepted or refused; 16 were written by
hand.
`python -m tests.otel.recorded_json` records the results again. Each difference is a change for exporters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from store.otel.decode import JSON, Undecodable

RECORDED = Path(__file__).parent / "data" / "json_requests.json"
# The context repeats the ids, and all spans of a recorded request have one resource.
_REPEATED = {"context", "parent", "resource"}


def cases() -> list[dict[str, Any]]:
    """Return the recorded requests and answers."""
    return json.loads(RECORDED.read_text())


def answer(request: str) -> dict[str, Any]:
    """Return what the decoder makes of a request, as JSON values."""
    body = request.encode()
    try:
        traces = JSON.decode(body)
    except Undecodable as error:
        return {"undecodable": str(error) if _is_json(body) else "not JSON"}
    spans = [span.model_dump(exclude=_REPEATED) for span in traces.spans]
    resources = [span.resource.model_dump() for span in traces.spans[:1]]
    refused = traces.refused.reasons
    return {"spans": spans, "resources": resources, "unnumbered": traces.unnumbered, "refused": refused}


def exact(content: Any) -> str:
    """Return JSON text, which tells 1 from 1.0 and True, and in which NaN equals itself."""
    return json.dumps(content)


def _is_json(body: bytes) -> bool:
    # The wording of a syntax error is orjson's and changes with its version.
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def write(requests: list[str]) -> None:
    """Record the answers to requests."""
    lines = [json.dumps({"request": request, "answer": answer(request)}) for request in requests]
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    write([case["request"] for case in cases()])
