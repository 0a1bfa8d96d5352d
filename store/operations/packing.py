"""Compression of stored bodies with dictionaries, in short transactions, while other processes write.

A body is the stored payload of an event. Most bodies of one type of event are alike: they have the same keys, and many
of the same values. A dictionary contains what they have in common, so that a small body can be compressed well. It is
trained from a sample of the bodies, so it contains parts of them. When one of these bodies is removed, the dictionary
must not be used any more: the bodies that are compressed with it are stored in another form, and it is emptied.

Each transaction changes a few bodies, or one dictionary. So a call that is stopped at any moment leaves a correct
store, and the next call continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.db.dialect import Changes, Dialect, ReadSession, Row, TablePart, Tail, WriteSession
from store.db.dictionaries import Packer, trained
from store.db.queries import dictionaries as queries
from store.db.queries.bodies import raw_json
from store.db.queries.dictionaries import Candidate, Trained
from store.db.queries.log import bodies_at
from store.db.tables import core as core_tables
from store.domain.body import FIRST_CODEC, PLAIN, ZLIB
from store.errors import Corrupt, StoreError
from store.validation.json_limits import encode_body

LEAST_BODIES: Final = 2000
"""A dictionary is trained for a type of event only from at least this number of bodies."""
_LEAST_BYTES: Final = 512 * 1024
_MOST_OF_SAMPLE: Final = 8 * 1024
# A dictionary is used only if it makes bodies smaller than this share of their stored size.
_WORTHWHILE: Final = 0.8
# A new dictionary replaces an older one only if its bodies are smaller than this share.
_BETTER: Final = 0.9
_SEARCHED_AT_ONCE: Final = 2000
_LONGEST_SAMPLE: Final = 256 * 1024
_ROWS: Final = 256
_BYTES: Final = 1024 * 1024
_LEAST_PAUSE: Final = 0.002
_FORM: Final = TablePart(core_tables.bodies, ("codec", "body"))
_CONTENT: Final = TablePart(core_tables.dictionaries, ("samples", "content"))


@dataclass(slots=True)
class Packed:
    """What was compressed."""

    dictionaries: int = 0
    """The number of dictionaries that were trained."""
    bodies: int = 0
    """The number of bodies that are stored in another form now."""
    longest_seconds: float = 0.0
    """The longest time that one transaction held the write lock."""


@asynccontextmanager
async def packing(dialect: Dialect) -> AsyncGenerator[Packing]:
    """Open a session that writes, and yield what changes the stored form of bodies with it.

    What is replaced is overwritten where the database can do so, because it may contain payload that is removed later.
    """
    session = await dialect.writer()
    try:
        await dialect.overwrite_deleted(session)
        yield Packing(dialect, session)
    finally:
        await session.close()


class Packing:
    """Changes the form in which bodies are stored.

    Args:
        dialect: the open database.
        session: a session that writes to it.
    """

    def __init__(self, dialect: Dialect, session: WriteSession) -> None:
        self._dialect, self._session = dialect, session
        self.packed = Packed()

    async def compress(self) -> None:
        """Compress the bodies of each type of event that has enough of them, and empty dictionaries like `retire`."""
        live, stale = await self._dictionaries()
        packers = await self._packers(live)
        kept = {each.codec for each in live}
        await self._store_again(packers, kept)
        await self._empty(stale)

    async def retire(self) -> bool:
        """Empty the dictionaries that contain parts of removed bodies; return whether the store has any dictionary.

        Raises:
            Corrupt: a body cannot be read, so its dictionary cannot be emptied.
        """
        live, stale = await self._dictionaries()
        kept = {PLAIN, ZLIB, *(each.codec for each in live)}
        used = stale
        while used:
            before = self.packed.bodies
            await self._store_again({}, kept)
            used = await self._empty(used)
            # Another process may have compressed more bodies meanwhile.
            if used and self.packed.bodies == before:
                raise Corrupt("a stored body", f"one that cannot be read with dictionary {used[0].codec}", "JSON")
        return bool(live or stale)

    async def _dictionaries(self) -> tuple[list[Trained], list[Trained]]:
        """Return the dictionaries whose samples all exist, and the others."""
        live, stale = list[Trained](), list[Trained]()
        async with self._dialect.read() as session:
            for each in await queries.in_use(self._dialect, session):
                (stale if await queries.lacks_samples(self._dialect, session, each) else live).append(each)
        return live, stale

    # -- dictionaries --------------------------------------------------------------------------------------------------

    async def _packers(self, live: list[Trained]) -> dict[str, tuple[int, Packer]]:
        """Return for types of events the dictionary that their bodies get, and add new dictionaries to `live`."""
        kept = {each.codec for each in live}
        counts, totals = dict[str, int](), dict[str, int]()
        async with self._dialect.read() as session:
            for each in await queries.sizes(self._dialect, session):
                if each.codec not in kept:
                    counts[each.type] = counts.get(each.type, 0) + each.bodies
                    totals[each.type] = totals.get(each.type, 0) + each.raw_bytes
        newest = {each.type: each.codec for each in live}
        packers: dict[str, tuple[int, Packer]] = {}
        for type_, codec in newest.items():
            async with self._dialect.read() as session:
                content = await queries.content(self._dialect, session, codec)
            if content is not None:
                packers[type_] = (codec, Packer(content))
        for type_, count in counts.items():
            if count >= LEAST_BODIES and totals[type_] >= _LEAST_BYTES:
                _, known = packers.get(type_, (0, None))
                if (new := await self._train(type_, count, kept, known)) is not None:
                    live.append(Trained(new[0], type_, ()))
                    packers[type_] = new
        return packers

    async def _train(
        self, type_: str, count: int, kept: Collection[int], known: Packer | None
    ) -> tuple[int, Packer] | None:
        """Store a new dictionary for a type of event, and return it; None if it would save too little."""
        async with self._dialect.read(snapshot=True) as session:
            step = max(1, count // LEAST_BODIES)
            places = await queries.positions(self._dialect, session, type_, except_codecs=kept, step=step)
            samples = await self._samples(session, places)
        raws = [each.raw for each in samples]
        content = trained([raw[:_MOST_OF_SAMPLE] for raw in raws])
        if content is None:
            return None
        packer = Packer(content)
        size = sum(len(packer.packed(raw)) for raw in raws)
        if size > _WORTHWHILE * sum(each.stored_len for each in samples):
            return None
        if known is not None and size > _BETTER * sum(len(known.packed(raw)) for raw in raws):
            return None
        codec = await self._store(type_, content, [each.position for each in samples])
        return None if codec is None else (codec, packer)

    async def _samples(self, session: ReadSession, places: Sequence[int]) -> list[_Sample]:
        """Return the bodies at some positions. Bodies that are too long or cannot be read are left out."""
        found: list[_Sample] = []
        for at in range(0, len(places), _ROWS):
            bodies = await bodies_at(self._dialect, session, places[at : at + _ROWS])
            for position, (codec, stored) in sorted(bodies.items()):
                with contextlib.suppress(StoreError):
                    raw = raw_json(codec, stored)
                    if len(raw) <= _LONGEST_SAMPLE:
                        found.append(_Sample(position, raw, len(stored)))
        return found

    async def _store(self, type_: str, content: bytes, samples: Sequence[int]) -> int | None:
        """Store a new dictionary, and return its number; None if one of its samples was removed meanwhile."""
        async with self._transaction() as tail:
            last = await queries.last_codec(self._dialect, self._session)
            codec = FIRST_CODEC if last is None else last + 1
            if await queries.lacks_samples(self._dialect, self._session, Trained(codec, type_, samples)):
                return None
            digest = hashlib.sha256(content).digest()
            row: Row = (codec, type_, digest, tail.now, queries.encoded(samples), content)
            await self._session.write(Changes({core_tables.dictionaries: [row]}, {}, {}))
        self.packed.dictionaries += 1
        return codec

    async def _empty(self, dictionaries: Sequence[Trained]) -> list[Trained]:
        """Empty dictionaries; return those that are still used."""
        used: list[Trained] = []
        for each in dictionaries:
            async with self._transaction():
                if await queries.is_used(self._dialect, self._session, each.codec):
                    used.append(each)
                else:
                    await self._session.write(Changes({}, {}, {}, {_CONTENT: [(each.codec, b"", b"")]}))
        return used

    # -- bodies --------------------------------------------------------------------------------------------------------

    async def _store_again(self, packers: Mapping[str, tuple[int, Packer]], kept: Collection[int]) -> None:
        """Store all bodies in another form, except those with the codecs `kept`.

        A body is compressed with the dictionary of its type of event if that makes it smaller. Without a dictionary, it
        gets the form that a new body has.
        """
        after = 0
        while found := await self._candidates(kept, after):
            after = found[-1].position
            chosen = [each for each in found if each.type in packers or each.codec >= FIRST_CODEC]
            start = size = 0
            for end, each in enumerate(chosen):
                if end - start >= _ROWS or (end > start and size + each.raw_len > _BYTES):
                    await self._store_part_again(chosen[start:end], packers)
                    start, size = end, 0
                size += each.raw_len
            await self._store_part_again(chosen[start:], packers)

    async def _candidates(self, kept: Collection[int], after: int) -> list[Candidate]:
        async with self._dialect.read() as session:
            return await queries.candidates(
                self._dialect, session, except_codecs=kept, after=after, limit=_SEARCHED_AT_ONCE
            )

    async def _store_part_again(self, part: Sequence[Candidate], packers: Mapping[str, tuple[int, Packer]]) -> None:
        async with self._dialect.read() as session:
            bodies = await bodies_at(self._dialect, session, [each.position for each in part])
        rows: list[Row] = [
            (each.position, *form)
            for each in part
            if each.position in bodies
            and (form := _other_form(each, *bodies[each.position], packers.get(each.type))) is not None
        ]
        if not rows:
            return
        seen = {each.position: each.codec for each in part}
        async with self._transaction():
            # Another process may have removed a body, stored it in another form, or emptied a dictionary meanwhile.
            codecs = await queries.codecs_at(self._dialect, self._session, [row[0] for row in rows])
            usable = {PLAIN, ZLIB, *await queries.usable(self._dialect, self._session)}
            rows = [row for row in rows if codecs.get(row[0]) == seen[row[0]] != row[1] and row[1] in usable]
            if rows:
                await self._session.write(Changes({}, {}, {}, {_FORM: rows}))
        self.packed.bodies += len(rows)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Tail]:
        tail = await self._session.begin()
        began = time.monotonic()
        try:
            yield tail
            await self._session.commit()
        except BaseException:
            await self._session.rollback()
            raise
        seconds = time.monotonic() - began
        self.packed.longest_seconds = max(self.packed.longest_seconds, seconds)
        # Other writers wait for the lock.
        await asyncio.sleep(max(_LEAST_PAUSE, seconds))
        await self._session.rest()


class _Sample(NamedTuple):
    """A body from which a dictionary is trained."""

    position: int
    raw: bytes
    stored_len: int


def _other_form(
    each: Candidate, codec: int, stored: bytes, packer: tuple[int, Packer] | None
) -> tuple[int, bytes] | None:
    """Return the codec and the bytes with which a body is stored from now on; None if it stays as it is."""
    try:
        raw = raw_json(codec, stored)
    except StoreError:
        return None
    if hashlib.sha256(raw).digest() != each.sha256:
        return None  # `verify` reports it
    if packer is not None:
        number, with_dictionary = packer
        packed = with_dictionary.packed(raw)
        is_smaller = len(packed) < _WORTHWHILE * each.stored_len or each.codec >= FIRST_CODEC
        if is_smaller and with_dictionary.raw(packed) == raw:
            return number, packed
    if each.codec < FIRST_CODEC:
        return None
    body = encode_body(raw)
    return body.codec, body.stored
