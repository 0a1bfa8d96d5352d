"""Options of `rollbook serve`, and the settings of the server process that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.import_string import named, pipeline_named
from store.cli.options import ConfirmResumes, Fallback, OrphanChoice, Orphans, Prices, lifetime, size
from store.db.url import PARTITION
from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.errors import Invalid
from store.server.streaming.slots import MAX_STREAMS, MAX_STREAMS_PER_KEY

if TYPE_CHECKING:
    from store.operations.schedule import Schedule
    from store.server.auth.tls import Certificate
    from store.server.quotas import Quota
    from store.server.streaming.front_end import FrontEnd

_TIME_OF_DAY: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


def _interval(text: str) -> float | None:
    return None if text == "never" else lifetime(text)


def _time_of_day(text: str) -> time | None:
    if text == "never":
        return None
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a time of day; write 03:00, 22:30 or never")
    return time(int(match[1]), int(match[2]))


def _quota(text: str) -> tuple[str | None, dict[str, int | None]]:
    """Return the name of a partition, or None for all partitions, and the limits."""
    name, colon, rest = text.rpartition(":")
    if colon and not PARTITION.fullmatch(name):
        raise typer.BadParameter(f"no partition can be named {name!r}; write calls=50, or run_7:calls=50")
    limits: dict[str, int | None] = {}
    for limit in rest.split(","):
        kind, _, value = (part.strip() for part in limit.partition("="))
        if kind not in {"events", "bytes", "calls"}:
            raise typer.BadParameter(
                f"{limit.strip()!r} is not a limit; write events=5000000,bytes=20GB,calls=500, or some of these"
            )
        if kind in limits:
            raise typer.BadParameter(f"{text!r} has two limits for {kind}; give one")
        limits[kind] = None if value == "none" else _limit(kind, value)
    return name if colon else None, limits


def _limit(kind: str, text: str) -> int:
    is_number = text.isascii() and text.isdecimal()
    limit = size(text) if kind == "bytes" else int(text) if is_number else 0
    if not limit:
        example = "20GB" if kind == "bytes" else "500"
        raise typer.BadParameter(f"{text!r} is not a limit for {kind}; write {kind}={example}, or {kind}=none")
    return limit


class LogLevel(Enum):
    """The levels of the server's log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the server processes and their limits."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 chooses a free one.")] = 4747
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Allow requests from pages of this origin, * for all; may be repeated."),
    ] = None
    log_level: Annotated[
        LogLevel,
        typer.Option(case_sensitive=False, help="With info, refused requests are logged; with debug, all requests."),
    ] = LogLevel.INFO
    max_body_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=1024, help="The maximum size of a request body.")
    ] = 32 * 1024 * 1024
    max_streams: Annotated[
        int, typer.Option(metavar="N", min=0, help="The maximum number of open streams of each server process.")
    ] = MAX_STREAMS
    max_streams_per_key: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The maximum number of open streams of one key in each process."),
    ] = MAX_STREAMS_PER_KEY
    scan_debounce: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The minimum time between two checks for overdue attempts.")
    ] = 10.0
    quota: Annotated[
        list[Any] | None,
        typer.Option(
            parser=_quota,
            metavar="[NAME:]events=N,bytes=SIZE,calls=N",
            help="The limits of each partition, or of the partition NAME: events, size on disk, and calls per second of"
            " each process; may be repeated.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve other machines without requiring keys: every client has full access."),
    ] = False
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=64, help="The number of server processes on this port; more than 1 needs Postgres."
        ),
    ] = 1
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (PEM); needs --tls-key.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of the certificate (PEM, not encrypted).")
    ] = None

    prices: Prices = None
    allow_private_webhooks: Annotated[
        bool,
        typer.Option("--allow-private-webhooks", help="Send webhooks also to addresses of this machine and network."),
    ] = False
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The address of the dashboard in webhooks; by default the listening address."),
    ] = None

    def base_url(self, port: int) -> str:
        """Return the address of the server in messages, without a slash at its end.

        Raises:
            Invalid: the public address is not an HTTP URL.
        """
        from store.wire.listener import url_of

        if self.public_url is not None:
            if not self.public_url.startswith(("http://", "https://")):
                raise Invalid("--public-url", f"{self.public_url!r} is not a URL; write https://host")
            return self.public_url.rstrip("/")
        endpoint = url_of(self.host, port)
        return endpoint if self.tls_cert is None else endpoint.replace("http://", "https://", 1)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of the server; None to serve http.

        Raises:
            BadParameter: only the certificate or only its key is given.
        """
        from store.server.auth.tls import Certificate

        if (self.tls_cert is None) != (self.tls_key is None):
            raise typer.BadParameter("give --tls-cert and --tls-key, or neither")
        return None if self.tls_cert is None or self.tls_key is None else Certificate(self.tls_cert, self.tls_key)

    def quotas(self) -> tuple[Quota, dict[str, Quota]]:
        """Return the default quota, and the quotas of single partitions by name.

        A limit that is not given for a partition is the limit of the default quota.

        Raises:
            Invalid: a limit is given twice.
        """
        from store.server.quotas import Quota

        limits_by_name: dict[str | None, dict[str, int | None]] = {}
        for name, limits in self.quota or ():
            partition_limits = limits_by_name.setdefault(name, {})
            if repeated := partition_limits.keys() & limits.keys():
                where = "all partitions" if name is None else f"the partition {name!r}"
                raise Invalid("--quota", f"{min(repeated)} is given twice for {where}; give it once")
            partition_limits |= limits
        default = limits_by_name.pop(None, {})
        return Quota(**default), {str(name): Quota(**default | limits) for name, limits in limits_by_name.items()}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the runs that front ends post, and that the server may execute."""

    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:PIPELINE",
            help="Also execute runs in the server, with this Pipeline; meant for one machine.",
        ),
    ] = None
    orphans: Orphans = OrphanChoice.RESUME
    confirm_side_effects: ConfirmResumes = False
    fallback: Fallback = None
    phase_graph: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:GRAPH|none",
            help="The phase graph of posted runs; by default that of --pipeline, or else of the trading front end.",
        ),
    ] = None
    unresponsive_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="The maximum time without a sign of life of a posted run."),
    ] = UNRESPONSIVE_SECONDS

    @property
    def pipeline_options(self) -> Mapping[str, Any]:
        """The options of the pipeline's runner."""
        return {
            "orphans": self.orphans.value,
            "confirm_side_effects": self.confirm_side_effects,
            "fallback_dir": self.fallback,
        }

    def front_end(self) -> FrontEnd:
        """Return the front end, with the settings of the runs that it posts.

        Raises:
            Invalid: the pipeline or the phase graph cannot be imported.
        """
        from store.cli.example_parts import front_end
        from store.models import PhaseGraph

        graph: dict[str, PhaseGraph | None] = {}
        if self.pipeline is not None:
            graph["graph"] = pipeline_named("--pipeline", self.pipeline).graph
        if self.phase_graph == "none":
            graph["graph"] = None
        elif self.phase_graph is not None:
            graph["graph"] = named("--phase-graph", self.phase_graph, PhaseGraph)
        return front_end(unresponsive_seconds=self.unresponsive_seconds, fallback=self.fallback, **graph)


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Options of the operations that a server runs by itself."""

    verify_sample_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between verifications of a sample."),
    ] = "1h"
    verify_at: Annotated[
        Any,
        typer.Option(
            parser=_time_of_day, metavar="HH:MM|never", help="The local time of the daily verification of everything."
        ),
    ] = "03:00"
    backup_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between backups; needs --backup-dir."),
    ] = "never"
    backup_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", exists=True, file_okay=False, writable=True, help="The directory of scheduled backups."
        ),
    ] = None
    backup_keep: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of scheduled backups of each partition that are kept.")
    ] = 7
    retention_every: Annotated[
        Any,
        typer.Option(
            parser=_interval, metavar="TIME|never", help="The interval between removals of payload; needs --retention."
        ),
    ] = "never"
    retention: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A TOML file with the conditions for the removal of payload; see docs/retention.md."
        ),
    ] = None
    compress_every: Annotated[
        Any,
        typer.Option(parser=_interval, metavar="TIME|never", help="The interval between compressions of new events."),
    ] = "never"
    archive_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            writable=True,
            help="The directory in which the Admin page makes archives.",
        ),
    ] = None

    def schedule(self, *, has_operations: bool) -> Schedule:
        """Return the schedule.

        Args:
            has_operations: whether the server runs operations; False if it is read-only or its store is in memory.

        Raises:
            Invalid: an option needs another option, the file with the policy is invalid, or an option is given to a
                server that runs no operations.
        """
        from store.operations.schedule import BackupPlan, Schedule, read_policy

        if not has_operations:
            for option, value in (
                ("--backup-dir", self.backup_dir),
                ("--retention", self.retention),
                ("--compress-every", self.compress_every),
                ("--archive-dir", self.archive_dir),
            ):
                if value is not None:
                    raise Invalid(
                        option, "a server that is read-only or whose store is in memory runs no operations; omit it"
                    )
        if (self.backup_every is None) != (self.backup_dir is None):
            raise Invalid("--backup-every", "give --backup-every and --backup-dir, or neither")
        if (self.retention_every is None) != (self.retention is None):
            raise Invalid("--retention-every", "give --retention-every and --retention, or neither")
        return Schedule(
            sample_seconds=self.verify_sample_every,
            verify_at=self.verify_at,
            backup_seconds=self.backup_every,
            backup=None if self.backup_dir is None else BackupPlan(self.backup_dir.absolute(), self.backup_keep),
            retention_seconds=self.retention_every,
            retention=None if self.retention is None else read_policy(self.retention),
            compress_seconds=self.compress_every,
            archive_directory=None if self.archive_dir is None else self.archive_dir.absolute(),
        )


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of the server processes, which their parent process has checked."""

    db: str
    server: ServerOptions
    runs: RunOptions
    schedule: Schedule
    read_only: bool
    """Whether the server refuses every change. Its database may then be a read-only replica."""
