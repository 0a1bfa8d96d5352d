"""Checks of a server over HTTP. The checks send single requests and need no client."""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from importlib import metadata
from typing import Final, cast

from store.operations.doctor.machine import clocks
from store.operations.doctor.results import Verdict, ok, problem, skipped, warning
from store.operations.doctor.target import Target
from store.wire.paths import HEALTH, PARTITIONS, STORE
from store.wire.probe import ProbeResponse, get

_READY: Final = "/readyz"
_PATIENCE_SECONDS: Final = 5.0
_MOST_SKEW_SECONDS: Final = 2.0
"""The header Date has whole seconds."""


async def check_answer(target: Target) -> Verdict:
    """Check that a server with this partition answers."""
    began = time.monotonic()
    try:
        answer = await _get(target, target.base + HEALTH)
    except (OSError, HTTPException) as error:
        text = f"no server answers at {target.base} ({str(error) or type(error).__name__})"
        return problem(
            text,
            "start the server on a machine that reaches its database: rollbook serve --db URL --host HOST",
            "unavailable",
        )
    text = f"{target.base} answers within {1000 * (time.monotonic() - began):.0f} ms"
    if answer.status == 404:
        root, _, partition = target.base.partition(PARTITIONS)
        if partition:
            text = f"the server at {root} has no partition {partition}"
            return problem(text, f"rollbook partitions create {partition} --db {root}", "missing")
        return problem(f"the program at {root} is not a Rollbook server", "correct host, port and path", "missing")
    if answer.status == 503:
        return problem(f"the server answers with 503: {_detail(answer)}", "see the server's log", "unavailable")
    return ok(text)


async def check_database(target: Target) -> Verdict:
    """Check that the database of the server answers."""
    answer = await _get(target, target.base.partition(PARTITIONS)[0] + _READY)
    if answer.status == 404:
        return skipped("the server does not report the state of its database")
    if answer.status != 200:
        text = f"the server is not ready: {_detail(answer)}"
        return problem(text, "run this command with the URL of the server's database", "unavailable")
    return ok("the server is ready, and its database answers")


async def check_access(target: Target) -> Verdict:
    """Check that the server accepts the key, or needs none."""
    answer = await _get(target, target.base + STORE)
    if answer.status in {401, 403}:
        refusal = "requires a key" if target.api_key is None else "does not accept the key in ROLLBOOK_API_KEY"
        remedy = "set ROLLBOOK_API_KEY; on the server: rollbook keys create --role runner --db DATABASE"
        return problem(f"the server {refusal}: {_detail(answer)}", remedy)
    return ok("the server accepts the key" if target.api_key else "the server needs no key")


async def check_version(target: Target) -> Verdict:
    """Compare the version of the server with the version of this program."""
    answer = await _get(target, target.base + STORE)
    server_version, program_version = answer.body.get("version"), metadata.version("rollbook")
    if server_version is None:
        text = "this is a server of Agent-lightning, so only Agent-lightning's methods work"
        return warning(text, "to use the other methods, start a server of Rollbook: rollbook serve")
    if server_version != program_version:
        text = f"the server has version {server_version}, but this program has version {program_version}"
        return warning(text, f"pip install rollbook=={server_version}")
    mode = ", and is read-only" if answer.body.get("read_only") else ""
    return ok(f"the server and this program have the same version, {program_version}{mode}")


async def check_clock(target: Target) -> Verdict:
    """Compare the clock of this machine with the header Date of the server."""
    before = time.time()
    answer = await _get(target, target.base + HEALTH)
    after = time.time()
    if answer.date is None:
        return skipped("the server sends no header Date")
    server_time = parsedate_to_datetime(answer.date).timestamp()
    return clocks(server_time, before, after, _MOST_SKEW_SECONDS)


async def _get(target: Target, url: str) -> ProbeResponse:
    return await asyncio.to_thread(get, url, api_key=target.api_key, seconds=_PATIENCE_SECONDS)


def _detail(answer: ProbeResponse) -> str:
    missing = answer.body.get("missing")
    if isinstance(missing, dict):
        return ", ".join(f"{part}: {reason}" for part, reason in cast("dict[str, object]", missing).items())
    return str(answer.body.get("detail") or f"status {answer.status}")
