"""What operators ask: is it alive, is it ready, how much does it do. At the root only, whatever the partition."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from store.errors import StoreError
from store.server.gauges import measure
from store.server.metrics import CONTENT_TYPE, Gauge, Metrics
from store.server.parked import Parked
from store.server.partitions import Partitions

_PATIENCE_SECONDS: Final = 2.0


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


async def livez(request: Request) -> Response:
    """Say that the process answers."""
    del request
    return _json({"status": "alive"})


async def readyz(request: Request) -> Response:
    """Say whether calls would succeed, and if not, what is missing."""
    missing = await _missing(request)
    if missing:
        return _json({"status": "not ready", "missing": missing}, 503)
    return _json({"status": "ready"})


async def _missing(request: Request) -> dict[str, str]:
    parked: Parked = request.app.state.parked
    partitions: Partitions = request.app.state.partitions
    if parked.is_closing:
        return {"server": "is stopping"}
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await partitions.root.statistics()
    except TimeoutError:
        return {"database": f"has not answered for {_PATIENCE_SECONDS:g} s"}
    except StoreError as error:
        return {"database": str(error)}
    return {}


async def metrics(request: Request) -> Response:
    """Return counts and durations for Prometheus."""
    counted: Metrics = request.app.state.metrics
    partitions: Partitions = request.app.state.partitions
    gauges = [
        Gauge("parked_calls", "Calls that wait for work, for an end, or for news.").set(len(request.app.state.parked)),
        Gauge("open_partitions", "Partitions that are open besides the root.").set(len(partitions)),
        *await measure(partitions.open_stores()),
    ]
    return Response(counted.text(gauges), media_type=CONTENT_TYPE)


async def not_taken(request: Request) -> Response:
    """Refuse what OpenTelemetry exporters send besides traces."""
    del request
    return Response(status_code=501)
