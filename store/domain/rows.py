"""Rows whose values have names."""

from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any


class NamedRow(tuple[Any, ...]):
    """A row of a table or of a statement. Its values are attributes with the names of the columns."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@cache
def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], NamedRow]:
    """Return a function that makes rows with these column names. An empty or repeated name becomes no attribute."""
    named: Any = namedtuple("NamedRow", names, rename=True)  # noqa: PYI024 # pyright: ignore[reportUntypedNamedTuple]
    new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return partial(new, named)
