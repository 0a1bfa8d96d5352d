"""URL of a store. The URL names the database, the location of the database, and the partition."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from store.errors import Invalid
from store.runtime import postgres_url
from store.runtime.urls import DEFAULT_PARTITION, PARTITION, SCHEME_ALIASES, scheme_of, without_passwords

_OPTIONS = {
    "memory": frozenset[str](),
    "sqlite": frozenset({"partition", "durability"}),
}
# A URL ends at a #, its path ends at a ?, and parsers drop tabs and line ends. So a URL contains codes for these
# characters. All other characters stand for themselves. This includes %, except before one of these codes: %2523 is the
# name %23.
_CODES = {"#": "%23", "?": "%3F", "\t": "%09", "\n": "%0A", "\r": "%0D"}
_CODE = re.compile(r"%(?:(25)(?=(?:25)*(?:23|3[Ff]|09|0[Aa]|0[Dd]))|(23|3[Ff]|09|0[Aa]|0[Dd]))")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """The parsed URL of a store."""

    scheme: str
    text: str = field(repr=False)
    """The text that the user gave, which may contain a password."""
    partition: str = DEFAULT_PARTITION
    path: Path | None = None
    """The file of the partition. None if the database is not SQLite."""
    main: Path | None = None
    """The file of the default partition. None if the database is not SQLite."""
    dsn: str | None = field(default=None, repr=False)
    """The address for the driver of Postgres. None for other databases."""
    options: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """The options in the query of the URL, by name."""

    @property
    def shown(self) -> str:
        """The URL for messages: `***` replaces each password and the value of `direct`."""
        return without_passwords(self.text)


def passwords(url: StoreURL) -> set[str]:
    """Return the passwords that a URL contains, both in their encoded and in their decoded form."""
    addresses = [url.dsn, url.options.get("direct")] if url.dsn is not None else []
    return {password for dsn in addresses if dsn for password in postgres_url.split(dsn).passwords}


def parse(text: str) -> StoreURL:
    """Return the parts of a store's URL.

    The forms are `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db` and `postgresql://user@host/db`. In the
    name of a file, # is written as %23 and ? as %3F; other characters stand for themselves. SQLite and Postgres accept
    `?partition=name`, and SQLite accepts `?durability=full|normal`. Postgres accepts `?direct=URL`. It is needed if the
    main URL leads to a connection pooler: LISTEN and migrations then use the address in `direct`.

    Raises:
        Invalid: the scheme, an option or the partition's name is invalid; the message lists the valid values.
    """
    if scheme_of(text) == "postgresql" and "://" in text:
        return _postgres(text)
    parts = _split(text)
    scheme = SCHEME_ALIASES.get(parts.scheme, parts.scheme).partition("+")[0]
    if not parts.scheme or "://" not in text:
        name = without_passwords(text)
        raise Invalid("url", f"{name!r} has no scheme; write memory://, sqlite:///run.db or postgresql://host/database")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    allowed = _OPTIONS.get(scheme)
    if allowed is not None:
        unknown = sorted(query.keys() - allowed)
        if unknown:
            choices = ", ".join(sorted(allowed)) or "none"
            raise Invalid("url", f"option {unknown[0]!r} is not known for {scheme}:// (known: {choices})")
    partition = query.get("partition", DEFAULT_PARTITION)
    if not PARTITION.fullmatch(partition):
        raise Invalid("url", f"partition {partition!r} must match [a-z][a-z0-9_]{{0,39}}")
    match scheme:
        case "sqlite":
            return _sqlite(text, parts.netloc, parts.path, partition, query)
        case _:
            return StoreURL(scheme, text, partition, options=query)


def with_partition(url: str, partition: str) -> str:
    """Return the URL of the given partition of the database that `url` names."""
    parse(url)  # which refuses characters that `urlsplit` would drop
    parts = _split(url)
    query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key != "partition"]
    if partition != DEFAULT_PARTITION:
        query.append(("partition", partition))
    # `urlunsplit` drops the empty host of sqlite:///run.db.
    return f"{parts.scheme}://{urlunsplit(('', '', parts.netloc + parts.path, urlencode(query), ''))}"


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        pass  # the error may contain a part of a password
    raise Invalid("url", f"{without_passwords(text)!r} is not a URL; write the characters [ and ] as %5B and %5D")


def _postgres(text: str) -> StoreURL:
    address = postgres_url.split(text)
    options = postgres_url.checked_options(address)
    partition = options.get("partition", DEFAULT_PARTITION)
    if not PARTITION.fullmatch(partition):
        subject = "the partition" if address.passwords or "@" in address.query else f"partition {partition!r}"
        raise Invalid("url", f"{subject} must match [a-z][a-z0-9_]{{0,39}}")
    if "direct" in options:
        options["direct"] = postgres_url.direct_address(options["direct"])
    dsn = postgres_url.driver_address(address, options)
    return StoreURL("postgresql", text, partition, dsn=dsn, options=options)


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{_encoded(str(path))}"


def partition_file(main: Path, partition: str) -> Path:
    """Return the file of a partition of the database whose default partition is in `main`."""
    if partition == DEFAULT_PARTITION:
        return main
    return main.with_name(f"{main.name.removesuffix('.db')}.{partition}.db")


def _refuse_unsafe(text: str) -> None:
    """Raise `Invalid` if a URL contains a character that a parser would drop, or that ends the URL."""
    unsafe = next((character for character in text if character in "#\t\n\r\0"), None)
    if unsafe is None:
        return
    reason = f"the URL {without_passwords(text)!r} contains {unsafe!r}"
    if unsafe == "\0":
        raise Invalid("url", f"{reason}, which no name of a file contains; leave it out")
    head, mark, tail = text.partition("?")
    encoded = without_passwords(f"{_encoded(head)}{mark}{tail}")
    raise Invalid("url", f"{reason}, which a URL cannot contain; write {_CODES[unsafe]} for it: {encoded}")


def _encoded(text: str) -> str:
    escaped = re.sub(r"%(?=(?:25)*(?:23|3[Ff]|09|0[Aa]|0[Dd]))", "%25", text)
    return re.sub(r"[#?\t\n\r]", lambda character: _CODES[character[0]], escaped)


def _decoded(text: str) -> str:
    return _CODE.sub(lambda code: "%" if code[1] else chr(int(code[2], 16)), text)


def _sqlite(text: str, netloc: str, path: str, partition: str, query: dict[str, str]) -> StoreURL:
    _refuse_unsafe(text)
    if netloc:
        file = without_passwords(f"sqlite://{netloc}{path}").removeprefix("sqlite://")
        reason = f"{without_passwords(text)!r} contains a host; a SQLite URL has only a path: sqlite:///{file}"
        raise Invalid("url", reason)
    name = _decoded(path.removeprefix("/"))
    if name in {"", ":memory:"}:
        raise Invalid("url", "sqlite:// needs a file, as in sqlite:///run.db; for a store in memory use memory://")
    if query.get("durability", "full") not in {"full", "normal"}:
        raise Invalid("url", f"durability {query['durability']!r} must be full or normal")
    main = Path(name)
    return StoreURL("sqlite", text, partition, path=partition_file(main, partition), main=main, options=query)
