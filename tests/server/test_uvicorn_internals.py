"""The internals of uvicorn on which the server depends are unchanged."""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http import flow_control
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_PROTOCOL_STATE = {
    *("app", "access_log", "access_logger", "cycle", "expect_100_continue", "flow", "headers", "logger", "loop"),
    *("parser", "scope", "server_state", "timeout_keep_alive", "timeout_keep_alive_task", "transport"),
}
_CYCLE_STATE = {
    *("access_log", "body", "chunked_encoding", "default_headers", "disconnected", "expected_content_length", "flow"),
    *("keep_alive", "message_event", "more_body", "on_response", "response_complete", "response_started", "scope"),
    *("transport", "waiting_for_100_continue"),
}
_SOCKET_STATE = {"conn", "writable", "disconnected", "close_sent", "transport"}
# Methods that Connection, Exchange, FastRequest and SocketConnection override, call or stand in for. When one changes:
# read the change, adapt those classes, then write its new digest here.
_SOURCES: list[tuple[Callable[..., Any], str]] = [
    (HttpToolsProtocol.connection_made, "6efb565ff3d36b91"),
    (HttpToolsProtocol.connection_lost, "c91a4c9bf2e29c55"),
    (HttpToolsProtocol.eof_received, "5652627579a02369"),
    (HttpToolsProtocol.data_received, "010a7ae59a5d3b1a"),
    (HttpToolsProtocol.send_400_response, "ae5a4a3782b646fd"),
    (HttpToolsProtocol.on_message_begin, "96d377fdc7c2baef"),
    (HttpToolsProtocol.on_header, "65d62c044f61fdbd"),
    (HttpToolsProtocol.on_headers_complete, "1ea8589acfad92d8"),
    (HttpToolsProtocol.on_body, "dba9c32aeba35b6a"),
    (HttpToolsProtocol.on_message_complete, "1fbad42dc31fc01f"),
    (HttpToolsProtocol.on_response_complete, "64e254f28e389e76"),
    (HttpToolsProtocol.shutdown, "d7351fa33f00d430"),
    (HttpToolsProtocol.timeout_keep_alive_handler, "8b53bf5f2e202970"),
    (HttpToolsProtocol._start_asgi_task, "9c08c2571ae9b038"),  # pyright: ignore[reportPrivateUsage] - Connection calls it
    (RequestResponseCycle.__init__, "4d2f220910c33c12"),
    (RequestResponseCycle.run_asgi, "0f33f2449a444bc2"),
    (RequestResponseCycle.send, "abdd8601b326a8da"),
    (RequestResponseCycle.receive, "8124ae006be71184"),
    (WebSocketsSansIOProtocol.run_asgi, "662375aa38d9044c"),
    (WebSocketsSansIOProtocol.send, "d4919ed760ce9f7b"),
]


def _stored(method: Callable[..., Any]) -> set[str]:
    return set(method.__code__.co_names)


def _digest(method: Callable[..., Any]) -> str:
    return hashlib.sha256(inspect.getsource(method).encode()).hexdigest()[:16]


def test_the_state_that_is_read_and_written_is_there() -> None:
    assert _stored(HttpToolsProtocol.__init__) >= _PROTOCOL_STATE
    assert _stored(RequestResponseCycle.__init__) >= _CYCLE_STATE
    assert _stored(WebSocketsSansIOProtocol.__init__) >= _SOCKET_STATE
    assert flow_control.HIGH_WATER_LIMIT == 65536
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("method, digest", _SOURCES, ids=lambda value: getattr(value, "__qualname__", None))
def test_a_method_that_is_built_on_has_not_changed(method: Callable[..., Any], digest: str) -> None:
    assert _digest(method) == digest, inspect.getsource(method)


def test_releases_that_were_not_read_are_not_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (required,) = [
        requirement.specifier
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "uvicorn"
    ]
    installed = metadata.version("uvicorn")
    assert installed in required
    major, minor, *_ = map(int, installed.split("."))
    assert f"{major}.{minor + 1}.0" not in required
