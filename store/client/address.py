"""The URL of a server: where it is, and which of its partitions is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from yarl import URL

from store.db.url import DEFAULT_PARTITION, PARTITION
from store.errors import Invalid
from store.wire.paths import OTLP_TRACES, PARTITIONS, PREFIX

SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL of a server."""

    base: str
    """Scheme, host, port and path, up to where the protocol's own paths begin."""

    @property
    def otlp_traces(self) -> str:
        """Where OpenTelemetry exporters may post traces."""
        return self.base + OTLP_TRACES


def parse(url: str) -> Address:
    """Return the address in a URL: `http://host:port`, a partition as `/p/<name>` or `?partition=<name>`.

    A path before that is kept, for servers behind a proxy.

    Raises:
        Invalid: it is no URL of a server, holds a user or a password, or names a partition that cannot be.
    """
    try:
        parts = urlsplit(url)
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError as error:
        raise Invalid("url", f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in SCHEMES:
        raise Invalid("url", f"{url!r} is not a server's; write http://host:4747 or https://host")
    if "@" in parts.netloc:
        raise Invalid("url", "holds a user or a password; give the key as api_key=… or in ROLLBOOK_API_KEY")
    if not has_host:
        raise Invalid("url", f"{url!r} names no host; write http://host:4747")
    if parts.fragment:
        raise Invalid("url", f"#{parts.fragment} means nothing here; leave it out")
    path = parts.path.rstrip("/").removesuffix(PREFIX)
    # As it travels: spaces and other scripts are percent-encoded, a name of other letters in its ASCII form.
    return Address(str(URL(f"{parts.scheme}://{parts.netloc}{path}{_partition(parts, path)}")).rstrip("/"))


def _partition(parts: SplitResult, path: str) -> str:
    """Return what the query's partition adds to the path."""
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    partition = query.pop("partition", None)
    if query:
        raise Invalid("url", f"option {min(query)!r} is not known for {parts.scheme}:// (known: partition)")
    if partition is None:
        return ""
    if not PARTITION.fullmatch(partition):
        raise Invalid("url", f"partition {partition!r} must match [a-z][a-z0-9_]{{0,39}}")
    if path.endswith(PARTITIONS + partition):
        return ""
    if PARTITIONS in path:
        raise Invalid("url", f"the path {path} names a partition already, and not {partition!r}")
    return "" if partition == DEFAULT_PARTITION else PARTITIONS + partition
