"""Check of the dictionaries with which bodies are compressed.

No event records a dictionary. So its row is compared with the events of its samples: a dictionary is trained from
bodies of one type of event, and `samples` contains the positions of these events.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from store.db.dialect import ReadSession
from store.db.dictionaries import load
from store.db.queries import dictionaries
from store.domain.body import FIRST_DICTIONARY_CODEC
from store.verification.differences import Differences

_BEFORE_ALL = -(2**62)

_Difference = tuple[str, Any, Any]
"""The column, the expected value and the stored value."""


async def check_dictionaries(session: ReadSession, differences: Differences) -> None:
    """Report rows of `dictionaries` that no compression writes. The session must be a snapshot."""
    number = FIRST_DICTIONARY_CODEC
    for row in await dictionaries.rows(session, _BEFORE_ALL):
        wrong = [] if row.codec == number else [("codec", number, row.codec)]
        number = row.codec + 1
        wrong += [*_wrong_content(row.hash, row.content), *_wrong_list(row.samples, is_emptied=not row.content)]
        if row.trained_at <= 0:
            wrong.append(("trained_at", "a time", row.trained_at))
        if not any(column == "samples" for column, _, _ in wrong):
            wrong += await _wrong_samples(session, row.type, dictionaries.decode_positions(row.samples))
        for column, expected, actual in wrong:
            differences.add("dictionaries", f"dictionary {row.codec}", column, expected, actual)


def _wrong_content(digest: bytes, content: bytes) -> Iterator[_Difference]:
    if len(digest) != hashlib.sha256().digest_size:
        yield "hash", "the SHA-256 of the content", digest
    elif content and load(digest, content) is None:
        yield "content", digest, hashlib.sha256(content).digest()


def _wrong_list(samples: bytes, *, is_emptied: bool) -> Iterator[_Difference]:
    """Yield a difference if a list of positions does not have the form of `encode_positions`."""
    if is_emptied:
        if samples:
            yield "samples", "no positions, because the content is empty", f"{len(samples)} bytes"
        return
    if not samples or len(samples) % 8:
        yield "samples", "8 bytes for each position", f"{len(samples)} bytes"
        return
    positions = dictionaries.decode_positions(samples)
    for before, position in zip([0, *positions], positions, strict=False):
        if not before < position < 2**63:
            yield "samples", f"a position after {before}", position
            return


async def _wrong_samples(session: ReadSession, type_: str, positions: Sequence[int]) -> list[_Difference]:
    """Return the difference between the type of a dictionary and the types of the events of its samples."""
    types = await dictionaries.types_at(session, positions)
    others = {types.get(position) for position in positions} - {type_}
    if not others:
        return []
    if len(positions) > 1 and len(others) == 1 and type_ not in types.values() and (other := others.pop()) is not None:
        return [("type", other, type_)]
    position = next(position for position in positions if types.get(position) != type_)
    return [("samples", f"positions of events of the type {type_}", f"{position}: {types.get(position, 'no event')}")]
