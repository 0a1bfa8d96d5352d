"""Debian's pgbouncer in front of a Postgres, in transaction mode with few sessions."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from tests.postgres import free_port

_SECONDS = 60.0


class PgBouncer:
    """A pgbouncer, which a test may restart.

    Attributes:
        url: the URL of the database through pgbouncer, with the direct address as `direct=`.
    """

    def __init__(self, program: str, directory: Path, url: str) -> None:
        target = urlsplit(url)
        self._port = free_port()
        self._configuration = directory / "pgbouncer.ini"
        self._configuration.write_text(
            f"[databases]\n* = host={target.hostname} port={target.port} user={target.username}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 3\n"
        )
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        through = target._replace(netloc=f"{target.username}@127.0.0.1:{self._port}", query="")
        self.bare_url = urlunsplit(through)
        self.url = f"{self.bare_url}?direct={quote(urlunsplit(target._replace(query='')), safe='')}"

    def start(self) -> None:
        """Start the program, and return when it accepts connections."""
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process = subprocess.Popen(
            [self._program, "--quiet", str(self._configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=user and [],
            cwd="/",
        )
        deadline = time.monotonic() + _SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            assert time.monotonic() < deadline, "pgbouncer does not accept connections"
            assert self._process.poll() is None, "pgbouncer has ended"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the program at once, which breaks all connections."""
        if self._process is not None:
            # Since version 1.23, pgbouncer waits for its clients after SIGTERM.
            self._process.kill()
            self._process.wait()


def program() -> str:
    """Return the path of pgbouncer; without it the test is skipped, or fails if ROLLBOOK_REQUIRE_PGBOUNCER is set."""
    path = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if path is not None:
        return path
    told = "no pgbouncer on the path: apt-get install pgbouncer"
    if os.environ.get("ROLLBOOK_REQUIRE_PGBOUNCER"):
        pytest.fail(told)
    pytest.skip(told)


@contextlib.contextmanager
def running(url: str) -> Generator[PgBouncer]:
    """Run pgbouncer in front of the Postgres of a URL."""
    directory = Path(tempfile.mkdtemp(prefix="rollbook-pgbouncer-"))
    bouncer = PgBouncer(program(), directory, url)
    directory.chmod(0o755)
    try:
        bouncer.start()
        yield bouncer
    finally:
        bouncer.stop()
        shutil.rmtree(directory)
