"""Functions that the scripts in this folder share: they check claims and write the results.

The scripts run in an environment with Agent-lightning and with this checkout on the path.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import ipaddress
import json
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Claim = Callable[[Any], Any]


def stay_on_this_machine() -> None:
    """Refuse every connection that is not to a loopback address, in this process and its forks."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            connecting, address = arguments
            if connecting.family != socket.AF_UNIX and not _is_loopback(str(address[0])):
                raise PermissionError(f"a connection to {address} would leave the machine")

    sys.addaudithook(watch)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def arguments() -> argparse.Namespace:
    """Return what the test passes: the server's URL, where to write the report, and claims to leave out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--without", nargs="*", default=[])
    return parser.parse_args()


def claims_of(module: str) -> list[Claim]:
    """Return the claims of a running script: its public functions, in the order written."""
    held = vars(sys.modules[module])
    return [
        member
        for name, member in held.items()
        if inspect.isfunction(member) and member.__module__ == module and not name.startswith("_")
    ]


async def hold(claims: list[Claim], subject: Any, options: argparse.Namespace) -> None:
    """Run each claim on the subject and write its name with what it raised, or None, to the report."""
    outcomes: dict[str, str | None] = {}
    for claim in claims:
        if claim.__name__ in options.without:
            continue
        try:
            async with asyncio.timeout(60):
                result = claim(subject)
                if inspect.isawaitable(result):
                    await result
        except Exception:  # noqa: BLE001 - whatever it is, the test that waits for it has to show it
            outcomes[claim.__name__] = traceback.format_exc()
        else:
            outcomes[claim.__name__] = None
        _write(options.report, outcomes)


def _write(report: Path, outcomes: dict[str, str | None]) -> None:
    report.write_text(json.dumps(outcomes))
