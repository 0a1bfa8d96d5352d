"""Connections to Postgres that do not read the descriptions of built-in types again."""

from typing import Any, Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs] (asyncpg has no type hints)

_FIRST_ASSIGNED_OID: Final = 10_000
"""Types with smaller ids are built into Postgres. The ids of all other types differ between databases."""
_BUILT_IN_TYPES: Final[dict[frozenset[int], Any]] = {}
"""The descriptions of built-in types that a connection of this process has read, by the ids of the types."""


class _NoStatement:
    """Stands for the statement that selects types.

    It has a name, so asyncpg knows that its own unnamed statement is still prepared.
    """

    name = "none"


class TypesConnection(asyncpg.Connection):  # pyright: ignore[reportUntypedBaseClass, reportMissingTypeArgument]
    """A connection that takes the descriptions of built-in types from a cache of the process."""

    async def _introspect_types(self, typeoids: Any, timeout: float) -> Any:  # noqa: ASYNC109 (asyncpg's signature)
        """Return asyncpg's description of types, and the statement that selected it, from the process's cache.

        The statement takes the server 15 ms on each new connection, mostly for its plan. asyncpg calls this method for
        arrays, also of built-in types, whose ids are the same on every server.
        """
        oids = frozenset(typeoids)
        if oids in _BUILT_IN_TYPES:
            return _BUILT_IN_TYPES[oids], _NoStatement
        types, statement = await super()._introspect_types(typeoids, timeout)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if max(oids) < _FIRST_ASSIGNED_OID:
            _BUILT_IN_TYPES[oids] = types
        return types, statement  # pyright: ignore[reportUnknownVariableType]
