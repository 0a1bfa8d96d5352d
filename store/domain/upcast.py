"""Old shapes of events become the current one, step by step, when they are read; the log itself is never rewritten."""

from collections.abc import Callable

from store.domain.events import FACTS, Fact, Json, decode
from store.errors import Incompatible

# (type, shape as stored) → the data in the next shape. Empty while every type is at its first shape.
UPCASTERS: dict[tuple[str, int], Callable[[Json], Json]] = {}


def upcast(type_: str, shape: int, data: Json) -> Fact:
    """Return the fact of a stored event, whatever version wrote it.

    Raises:
        Incompatible: a newer version wrote a type or a shape that this one does not know.
    """
    kind = FACTS.get(type_)
    if kind is None or shape > kind.shape:
        raise Incompatible(f"the log holds {type_!r} in shape {shape}, unknown to this version", "upgrade Rollbook")
    while shape < kind.shape:
        data = UPCASTERS[type_, shape](data)
        shape += 1
    return decode(type_, data)
