"""The server under systemd: it takes the passed socket and reports when it is ready."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from store.cli import main
from tests.faults import processes
from tests.server.test_serving import HANG, SCRIPT

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


def started(passed: socket.socket, *arguments: str) -> subprocess.Popen[str]:
    """Start a server that inherits a socket."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _AS_SYSTEMD, "sh", "1", sys.executable, "-c", SCRIPT, "serve", *arguments],
        stdin=passed.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_passed_socket_is_served_and_readiness_reported(tmp_path: Path, notified: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        # The connection waits in the queue of the socket until the server is there.
        port = passed.getsockname()[1]
        with started(passed, "--db", f"sqlite:///{tmp_path / 'run.db'}", "--port", "1") as server:
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


def serve_inherited(inherited: socket.socket, count: str, db: str, errors: Path) -> None:
    """Run the command in this process, as if systemd had passed a socket to it."""
    with errors.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.dup2(inherited.fileno(), 3)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=count)
    sys.argv = ["rollbook", "serve", "--db", db]
    main()


@pytest.mark.parametrize(
    "kind,message",
    [
        ("two", "systemd passes 2 sockets"),
        ("udp", "ListenStream="),
        ("unix", "ListenStream="),
        ("for other machines", "rollbook keys create"),
    ],
)
def test_a_socket_that_cannot_be_served_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    errors = tmp_path / "errors"
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as passed:
        if kind == "unix":
            passed.bind(str(tmp_path / "socket"))
        else:
            passed.bind(("0.0.0.0" if kind == "for other machines" else "127.0.0.1", 0))
        if kind == "for other machines":
            passed.listen()
        arguments = (passed, "2" if kind == "two" else "1", f"sqlite:///{tmp_path / 'run.db'}", errors)
        server = multiprocessing.get_context("forkserver").Process(target=serve_inherited, args=arguments, daemon=True)
        server.start()
        assert processes.leave([server], HANG) == [2]
    assert message in errors.read_text()
