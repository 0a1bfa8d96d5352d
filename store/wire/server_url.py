"""Parser of a server's URL, which has an address and may name a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from yarl import URL

from store.errors import Invalid
from store.runtime.urls import DEFAULT_PARTITION, PARTITION, scheme_of, without_passwords
from store.wire.paths import OTLP_TRACES, PARTITIONS, PREFIX

SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL of a server."""

    base: str
    """The URL to which the paths of the protocol are appended: scheme, host, port, and a path with the partition."""

    @property
    def otlp_traces(self) -> str:
        """The URL to which OpenTelemetry exporters can post traces."""
        return self.base + OTLP_TRACES


def parse(url: str) -> Address:
    """Parse a URL of the form `http://host:port`, with an optional partition: `/p/<name>` or `?partition=<name>`.

    A path before the partition is kept, for servers behind a proxy.

    Raises:
        Invalid: the URL is not the URL of a server, contains a user or a password, or has an invalid partition name.
    """
    if "@" in url and scheme_of(url) in SCHEMES:
        raise Invalid("url", "contains a user or a password; give the key as api_key=… or in ROLLBOOK_API_KEY")
    try:
        parts = urlsplit(url)
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError as error:
        reason = "" if "@" in url else f": {error}"  # the error may contain a part of a password
        raise Invalid("url", f"{without_passwords(url)!r} is not a URL{reason}") from None
    if parts.scheme not in SCHEMES:
        raise Invalid(
            "url", f"{without_passwords(url)!r} is not the URL of a server; write http://host:4747 or https://host"
        )
    if not has_host:
        raise Invalid("url", f"{without_passwords(url)!r} has no host; write http://host:4747")
    if parts.fragment:
        raise Invalid("url", f"the fragment #{parts.fragment} has no meaning; leave it out")
    path = parts.path.rstrip("/").removesuffix(PREFIX)
    # URL() percent-encodes the path and converts an internationalised host name to ASCII, as in a request.
    return Address(str(URL(f"{parts.scheme}://{parts.netloc}{path}{_partition(parts, path)}")).rstrip("/"))


def check_key(api_key: str) -> None:
    """Raise `Invalid`, without the key in its text, if an HTTP header cannot contain the key."""
    if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
        raise Invalid("api_key", "contains characters that an HTTP header cannot contain; copy the key exactly")


def _partition(parts: SplitResult, path: str) -> str:
    """Return the path segment for the partition that the query string names; empty if the path needs no segment."""
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
        raise Invalid("url", f"the path {path} names another partition than {partition!r}; give one of them")
    return "" if partition == DEFAULT_PARTITION else PARTITIONS + partition
