"""The store that a diagnosis examines, and its open connections."""

from __future__ import annotations

import shlex
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Final

from store.db.dialect import Dialect, dialect_for
from store.db.schema.postgres import AsyncpgConnection, store_errors
from store.db.url import StoreURL, parse
from store.errors import Invalid
from store.wire.server_url import SCHEMES, check_key
from store.wire.server_url import parse as parse_server_url

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgresql"
SERVER: Final = "server"


@dataclass(slots=True)
class Target:
    """The store that is examined."""

    url: StoreURL
    kind: str
    """`sqlite`, `postgresql`, `server`, or the scheme of another dialect."""
    port: int
    """The port that a server on this machine would use."""
    api_key: str | None = field(repr=False)
    base: str = ""
    """The URL of the server, to which the paths of the protocol are appended; empty for a database."""
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)
    """The connections and databases that the checks opened. They are closed at the end of the diagnosis."""
    _dialect: Dialect | None = None
    _connection: AsyncpgConnection | None = None

    @classmethod
    def of(cls, url: str, *, port: int, api_key: str | None) -> Target:
        """Return the target of a URL. Nothing is opened.

        Raises:
            Invalid: the URL does not name a store, or is `memory://`; or no request can contain the key.
        """
        if api_key:
            check_key(api_key)
        parsed = parse(url)
        if parsed.scheme == "memory":
            raise Invalid("url", "a memory:// store exists only inside its program; name a file or a database")
        if parsed.scheme in SCHEMES:
            return cls(parsed, SERVER, port, api_key, parse_server_url(url).base)
        return cls(parsed, parsed.scheme, port, api_key, _dialect=dialect_for(parsed)(parsed, None, read_only=True))

    @property
    def option(self) -> str:
        """The option `--db` with the URL of the store, for a command line. Passwords are left out."""
        return f"--db {shlex.quote(self.url.shown)}"

    @property
    def dialect(self) -> Dialect:
        """The database. The check of the schema opens it, for reading only."""
        assert self._dialect is not None  # only the checks of databases use it
        return self._dialect

    @property
    def connection(self) -> AsyncpgConnection:
        """The connection to Postgres, which the first check opens."""
        assert self._connection is not None  # the checks of Postgres need the check that opens it
        return self._connection

    @connection.setter
    def connection(self, connection: AsyncpgConnection) -> None:
        self._connection = connection

    def store_errors(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that converts the errors of the driver of Postgres to errors of the store."""
        return store_errors(self.dsn) if self.kind == POSTGRES else nullcontext()

    @property
    def dsn(self) -> str:
        """The address of the Postgres server itself, also if the URL leads to a connection pooler."""
        assert self.url.dsn is not None
        return self.url.options.get("direct", self.url.dsn)
