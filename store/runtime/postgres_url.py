"""Parser of the URL of a Postgres database. No message contains a part of a URL that may be a part of a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode, urlsplit

from store.errors import Invalid

DRIVER_OPTIONS: Final = frozenset(
    {"host", "port", "user", "password", "dbname", "sslmode", "sslcert", "sslkey", "sslrootcert", "application_name"}
)
"""Parameters of the connection. They are passed to the driver unchanged."""
OPTIONS: Final = DRIVER_OPTIONS | {"partition", "direct"}
SCHEMES: Final = ("postgresql", "postgres")

_SECRETS: Final = ("password", "direct")
"""Options whose values contain a password."""
_PARTS: Final = re.compile(r"\s*([^:/?#\s]+)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.DOTALL)
_HOST: Final = re.compile(r"(\[[^\[\]@]+\]|[^\[\]:@]*)(?::([0-9]*))?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|%00")
_ENCODED: Final = (
    "write the characters # / ? : @ [ ] % & of a user name or a password as %23 %2F %3F %3A %40 %5B %5D %25 %26"
)


@dataclass(frozen=True, slots=True, repr=False)
class PostgresAddress:
    """The parts of the URL of a Postgres database, as they were written."""

    netloc: str
    path: str
    query: str

    @property
    def dsn(self) -> str:
        """The address for the driver, with all options."""
        return f"postgresql://{self.netloc}{self.path}{self.query and '?' + self.query}"

    @property
    def options(self) -> dict[str, str]:
        """The options of the query, decoded."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def passwords(self) -> set[str]:
        """The password, as it was written and decoded; empty if there is none."""
        user, _, _ = self.netloc.rpartition("@")
        pairs = [part.partition("=") for part in self.query.split("&")]
        written = {user.partition(":")[2], *(value for key, _, value in pairs if key == "password")} - {""}
        return written | {unquote_plus(password) for password in written} | {unquote(password) for password in written}

    @property
    def host(self) -> tuple[str, str]:
        """The first host and its port. A part that the URL does not contain has its default value."""
        options = self.options
        hosts = unquote(self.netloc.rpartition("@")[2]) or options.get("host", "")
        match = _HOST.fullmatch(hosts.partition(",")[0])
        host, port = match.groups() if match else ("", "")
        return host.strip("[]") or "localhost", port or options.get("port", "").partition(",")[0] or "5432"

    def redacted(self, scheme: str) -> str:
        """Return the URL with `***` in place of each password and of the value of `direct`."""
        user, at, hosts = self.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        pairs = [part.partition("=") for part in self.query.split("&")] if self.query else []
        query = "&".join(f"{key}=***" if key in _SECRETS else f"{key}{equals}{value}" for key, equals, value in pairs)
        return f"{scheme}://{name}{colon and ':***'}{at}{hosts}{self.path}{query and '?' + query}"


def split(text: str) -> PostgresAddress:
    """Return the parts of the URL of a Postgres database.

    A URL that can be read in two ways is refused, because a part of the password could be read as another part of the
    URL.

    Raises:
        Invalid: a part of the URL is invalid, or contains a character that must be percent-encoded.
    """
    parts = _PARTS.fullmatch(text.rstrip())
    if parts is None or _CONTROL.search(text.strip()):
        raise _refused("it contains a control character, or has no address")
    _, netloc, path, query, fragment = parts.groups()
    if fragment is not None:
        raise _refused("it contains an unescaped #")
    user, _, hosts = netloc.rpartition("@")
    if "@" in user or "@" in path:
        raise _refused("it contains an unescaped @ or /")
    if "[" in user or "]" in user:
        raise _refused("it contains an unescaped bracket")
    if not _are_hosts(unquote(hosts) if "%" in hosts else hosts):
        raise _refused("the text before the database is not HOST or HOST:PORT")
    address = PostgresAddress(netloc, path, query or "")
    if not _is_readable(address.dsn):
        raise _refused("the host is invalid, or a character cannot be a part of a URL")
    return address


def checked_options(address: PostgresAddress) -> dict[str, str]:
    """Return the options of a URL.

    Raises:
        Invalid: an option is unknown, or has an invalid value.
    """
    is_ambiguous = "@" in address.query
    for name, _ in parse_qsl(address.query, keep_blank_values=True):
        if name not in OPTIONS:
            valid = f"(known: {', '.join(sorted(OPTIONS))})"
            if is_ambiguous or not re.fullmatch(r"[a-z_]{1,40}", name):
                raise _refused(f"an option is not known {valid}")
            raise Invalid("url", f"option {name!r} is not known for postgresql:// {valid}")
        is_ambiguous = is_ambiguous or name in _SECRETS
    options = address.options
    if not all(part.isdecimal() and part.isascii() and int(part) <= 65535 for part in _items(options.get("port"))):
        raise Invalid("url", "the option port is not a number up to 65535")
    if not _are_hosts(options.get("host", "")):
        raise Invalid("url", "the option host is not the name of a host or the path of a directory")
    return options


def driver_address(address: PostgresAddress, options: Mapping[str, str]) -> str:
    """Return the address for the driver, with the options of the URL that belong to the driver."""
    driver = {key: value for key, value in options.items() if key in DRIVER_OPTIONS}
    return PostgresAddress(address.netloc, address.path, urlencode(driver)).dsn


def direct_address(text: str) -> str:
    """Return the address for the driver that the value of the option `direct` contains.

    Raises:
        Invalid: the value is not the URL of a Postgres database.
    """
    scheme = text.partition("://")[0].partition("+")[0].lower()
    if scheme not in SCHEMES or "://" not in text:
        raise Invalid(
            "url", "direct is not the URL of a Postgres database; write direct=postgresql://user@host/database"
        )
    address = split(text)
    # Other options are settings of the server, which the driver sends.
    pairs = [pair for pair in parse_qsl(address.query, keep_blank_values=True) if pair[0] != "partition"]
    return PostgresAddress(address.netloc, address.path, urlencode(pairs)).dsn


def _refused(reason: str) -> Invalid:
    return Invalid("url", f"the URL of Postgres is invalid: {reason}; {_ENCODED}")


def _items(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _are_hosts(text: str) -> bool:
    if text.startswith("/"):
        return True  # the directory of a Unix socket
    matches = [_HOST.fullmatch(part) for part in text.split(",")]
    return all(match is not None and int(match[2] or 0) <= 65535 for match in matches)


def _is_readable(dsn: str) -> bool:
    """Return whether the driver can parse an address. The driver uses `urlsplit`."""
    try:
        dsn.encode()
        urlsplit(dsn)
    except ValueError:
        return False
    return True
