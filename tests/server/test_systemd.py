"""The server under systemd: it takes the passed socket and reports when it is ready."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.server.test_serving import HANG, SCRIPT

pytestmark = pytest.mark.slow

# As systemd does, the shell passes its sockets from descriptor 3 on, and names the process that may take them.
_AS_SYSTEMD = 'export LISTEN_PID=$$ LISTEN_FDS="$1"; shift; exec "$@" 3<&0 4<&0 </dev/null'


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd receives messages of its service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(HANG)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def started(passed: socket.socket, count: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a server that inherits a socket."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _AS_SYSTEMD, "sh", count, sys.executable, "-c", SCRIPT, "serve", *arguments],
        stdin=passed.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_passed_socket_is_served_and_readiness_reported(durable_url: str, notified: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        # The connection waits in the queue of the socket until the server is there.
        port = passed.getsockname()[1]
        with started(passed, "1", "--db", durable_url, "--port", "1") as server:
            try:
                assert notified.recv(100) == b"READY=1"
                with urlopen(f"http://127.0.0.1:{port}/livez", timeout=HANG) as response:
                    assert response.status == 200
                server.terminate()
                out, _ = server.communicate(timeout=HANG)
                assert f"http://127.0.0.1:{port}" in out
                assert server.returncode == 0
            finally:
                server.kill()


@pytest.mark.parametrize("kind", ["two", "udp", "unix"])
def test_a_socket_that_cannot_be_served_is_refused(tmp_path: Path, kind: str) -> None:
    families = {"two": socket.AF_INET, "udp": socket.AF_INET, "unix": socket.AF_UNIX}
    with socket.socket(families[kind], socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as passed:
        passed.bind(str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0))
        with started(passed, "2" if kind == "two" else "1", "--db", f"sqlite:///{tmp_path / 'run.db'}") as server:
            _, errors = server.communicate(timeout=HANG)
    assert server.returncode == 2
    assert "ListenStream=" in errors


def test_a_socket_for_other_machines_needs_keys(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'run.db'}"
    with socket.create_server(("0.0.0.0", 0)) as passed, started(passed, "1", "--db", db) as server:
        _, errors = server.communicate(timeout=HANG)
    assert server.returncode == 2
    assert "rollbook keys create" in errors
