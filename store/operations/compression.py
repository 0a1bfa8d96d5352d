"""Compression of stored events: of their bodies with dictionaries, and of their data in blocks. Decision 65.

The compression works in short transactions, while other processes write. `store.operations.packing` compresses the
data.

A body is the stored payload of an event. Most bodies of one type of event are alike: they have the same keys, and many
of the same values. A dictionary contains these common parts, so that a small body can be compressed well. The
dictionary is trained from a sample of the bodies, so it contains parts of these bodies. When a body of the sample is
removed, the dictionary must not be used any more. The bodies that are compressed with the dictionary are then stored in
another form, and the dictionary is emptied.

Each transaction changes a few bodies, or one dictionary. So a call that is stopped at any moment leaves a correct
store, and the next call continues the work.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from store.db.dialect import Changes, Dialect, ReadSession, Row, TablePart, Tail, WriteSession
from store.db.dictionaries import DictionaryCompressor, train
from store.db.queries import dictionaries as queries
from store.db.queries.bodies import raw_json
from store.db.queries.dictionaries import Candidate, StoredDictionary
from store.db.queries.log import bodies_at, last_event
from store.db.queries.removal import last_version
from store.db.tables import core as core_tables
from store.domain.body import FIRST_DICTIONARY_CODEC, PLAIN, ZLIB
from store.errors import Corrupt, StoreError
from store.journal.log_rows import STORE_STREAM
from store.operations.pace import Pace
from store.operations.packing import pack_events
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.validation.json_limits import encode_body

LEAST_BODIES: Final = 2000
"""A dictionary is trained for a type of event only from at least this number of bodies."""
_LEAST_BYTES: Final = 512 * 1024
"""A dictionary is trained only if these bodies have at least this size before compression."""
_MOST_OF_SAMPLE: Final = 8 * 1024
"""The number of bytes at the beginning of a sample with which a dictionary is trained."""
# A dictionary is used only if it compresses bodies to less than this share of their stored size.
_WORTHWHILE: Final = 0.8
# If a type of event has a dictionary, a new dictionary is stored only if it compresses the samples to less than this
# share of the size to which the newest dictionary compresses them.
_BETTER: Final = 0.9
_SEARCHED_AT_ONCE: Final = 2000
_LONGEST_SAMPLE: Final = 64 * 1024
"""The greatest size of a sample before compression."""
_SAMPLES_SIZE: Final = 32 * 1024 * 1024
"""No more samples are read when the samples together exceed this size before compression."""
_READ_AT_ONCE: Final = 256
_TRANSACTION_SIZE: Final = 1024 * 1024
"""The greatest size before compression of the bodies that one transaction changes, unless it changes only one body."""
_FORM: Final = TablePart(core_tables.bodies, ("codec", "body"))
_CONTENT: Final = TablePart(core_tables.dictionaries, ("samples", "content"))


@dataclass(slots=True)
class CompressionCounts:
    """The counts of the changes that a compression has made."""

    dictionaries: int = 0
    """The number of dictionaries that were trained."""
    bodies: int = 0
    """The number of bodies that are stored in another form now."""
    events: int = 0
    """The number of events whose data is stored in a block now."""
    longest_seconds: float = 0.0
    """The longest time that one transaction held the write lock."""


@asynccontextmanager
async def compression(dialect: Dialect) -> AsyncGenerator[Compression]:
    """Open a session that writes, and yield a `Compression` that uses it.

    The database overwrites the replaced bytes if it can, because they may contain payload that is removed later.
    """
    session = await dialect.writer()
    try:
        await dialect.overwrite_deleted(session)
        yield Compression(session)
    finally:
        await session.close()


class Compression:
    """Changes the form in which bodies are stored.

    Args:
        session: a session that writes to the database.
        pace: the size of the transactions and the pauses between them; None for a new `Pace`.
    """

    def __init__(self, session: WriteSession, pace: Pace | None = None) -> None:
        self._session = session
        self.counts = CompressionCounts()
        self._pace = pace or Pace()
        self._version = -1
        """The version of the stream of the store at the last check of dictionaries."""
        self._intact: dict[int, bool] = {}
        """The dictionaries that were checked at this version, and whether each has its content and all its samples."""

    async def compress(self, on_progress: OnProgress = ignore) -> None:
        """Compress the bodies of each type of event that has enough of them, and the data of events.

        Also empty the dictionaries that contain parts of removed bodies and that no body needs.
        """
        intact, outdated = await self._dictionaries()
        compressors = await self._compressors(intact)
        codecs = {dictionary.codec for dictionary in intact}
        await self._store_again(compressors, codecs, on_progress)
        await self._retire(outdated, compressors, codecs)
        async with self._session.dialect.read() as session:
            end = await last_event(session)
        if end is not None:
            packed = await pack_events(self._session, self._pace, end.position, on_progress)
            self.counts.events += packed
            self.counts.longest_seconds = self._pace.longest_seconds

    async def retire(self) -> bool:
        """Empty the dictionaries that contain parts of removed bodies; return whether the store ever had a dictionary.

        Raises:
            Corrupt: a body cannot be read, so its dictionary cannot be emptied.
        """
        intact, outdated = await self._dictionaries()
        await self._retire(outdated, {}, {PLAIN, ZLIB, *(dictionary.codec for dictionary in intact)})
        async with self._session.dialect.read() as session:
            return await queries.last_codec(session) is not None

    async def _retire(
        self, outdated: Sequence[StoredDictionary], compressors: Mapping[str, _Numbered], codecs: Collection[int]
    ) -> None:
        used = outdated
        while used:
            before = self.counts.bodies
            await self._store_again(compressors, codecs)
            used = await self._empty(used)
            # Another process may have compressed bodies with the dictionary before the removal was committed.
            if used and self.counts.bodies == before:
                raise Corrupt("a stored body", f"one that cannot be read with dictionary {used[0].codec}", "JSON")

    async def _dictionaries(self) -> tuple[list[StoredDictionary], list[StoredDictionary]]:
        """Return the dictionaries whose samples all exist, and the dictionaries that lack a sample."""
        intact, outdated = list[StoredDictionary](), list[StoredDictionary]()
        async with self._session.dialect.read() as session:
            for dictionary in await queries.with_content(session):
                (outdated if await queries.lacks_samples(session, dictionary) else intact).append(dictionary)
        return intact, outdated

    async def _compressors(self, intact: list[StoredDictionary]) -> dict[str, _Numbered]:
        """Return the number and the compressor of the dictionary for each type of event.

        New dictionaries are trained, stored and added to `intact`.
        """
        codecs = {dictionary.codec for dictionary in intact}
        counts, totals = dict[str, int](), dict[str, int]()
        async with self._session.dialect.read() as session:
            for size in await queries.sizes(session):
                if size.codec not in codecs:
                    counts[size.type] = counts.get(size.type, 0) + size.bodies
                    totals[size.type] = totals.get(size.type, 0) + size.raw_bytes
        newest = {dictionary.type: dictionary.codec for dictionary in intact}
        compressors: dict[str, _Numbered] = {}
        for type_, codec in newest.items():
            async with self._session.dialect.read() as session:
                compressor = await queries.compressor(session, codec)
            if compressor is not None:
                compressors[type_] = (codec, compressor)
        for type_, count in counts.items():
            if count >= LEAST_BODIES and totals[type_] >= _LEAST_BYTES:
                _, current = compressors.get(type_, (0, None))
                if (new := await self._train(type_, count, codecs, current)) is not None:
                    intact.append(StoredDictionary(new[0], type_, ()))
                    compressors[type_] = new
        return compressors

    async def _train(
        self, type_: str, count: int, codecs: Collection[int], current: DictionaryCompressor | None
    ) -> _Numbered | None:
        """Store and return a new dictionary for a type of event; None if the dictionary would save too little."""
        async with self._session.dialect.read(snapshot=True) as session:
            step = max(1, count // LEAST_BODIES)
            positions = await queries.positions(
                session, type_, except_codecs=codecs, longest=_LONGEST_SAMPLE, step=step
            )
            samples = await self._samples(session, positions)
        raws = [sample.raw for sample in samples]
        dictionary = train([raw[:_MOST_OF_SAMPLE] for raw in raws])
        if dictionary is None:
            return None
        compressor = DictionaryCompressor(dictionary)
        size = sum(len(compressor.compress(raw)) for raw in raws)
        if size > _WORTHWHILE * sum(sample.stored_len for sample in samples):
            return None
        if current is not None and size > _BETTER * sum(len(current.compress(raw)) for raw in raws):
            return None
        codec = await self._store(type_, dictionary.dict_content, [sample.position for sample in samples])
        return None if codec is None else (codec, compressor)

    async def _samples(self, session: ReadSession, positions: Sequence[int]) -> list[_Sample]:
        """Return the bodies at the first positions, up to about 32 MB. Bodies that cannot be read are left out."""
        samples: list[_Sample] = []
        size = 0
        for start in range(0, len(positions), _READ_AT_ONCE):
            bodies = await bodies_at(session, positions[start : start + _READ_AT_ONCE])
            for position, (codec, stored) in sorted(bodies.items()):
                with contextlib.suppress(StoreError):
                    raw = raw_json(codec, stored)
                    samples.append(_Sample(position, raw, len(stored)))
                    size += len(raw)
            if size > _SAMPLES_SIZE:
                break
        return samples

    async def _store(self, type_: str, content: bytes, samples: Sequence[int]) -> int | None:
        """Store a new dictionary, and return its number. Return None if one of its samples was removed meanwhile."""
        async with self._transaction() as tail:
            last = await queries.last_codec(self._session)
            codec = FIRST_DICTIONARY_CODEC if last is None else last + 1
            if await queries.lacks_samples(self._session, StoredDictionary(codec, type_, samples)):
                return None
            digest = hashlib.sha256(content).digest()
            row: Row = (codec, type_, digest, tail.now, queries.encode_positions(samples), content)
            await self._session.write(Changes({core_tables.dictionaries: [row]}, {}, {}))
        self.counts.dictionaries += 1
        return codec

    async def _empty(self, dictionaries: Sequence[StoredDictionary]) -> list[StoredDictionary]:
        """Empty the dictionaries that no body uses. Return the other dictionaries."""
        used: list[StoredDictionary] = []
        for dictionary in dictionaries:
            async with self._transaction():
                if await queries.is_needed(self._session, dictionary.codec):
                    used.append(dictionary)
                else:
                    await self._session.write(Changes({}, {}, {}, {_CONTENT: [(dictionary.codec, b"", b"")]}))
                    self._intact.pop(dictionary.codec, None)
        return used

    async def _store_again(
        self, compressors: Mapping[str, _Numbered], codecs: Collection[int], on_progress: OnProgress = ignore
    ) -> None:
        """Change the stored form of bodies whose codec is not in `codecs`.

        A body gets the dictionary of its type of event if that saves at least a fifth of its size. A body whose
        dictionary must be emptied gets another dictionary, or the form of a new body. Other bodies stay as they are.
        """
        after = 0
        async with self._session.dialect.read() as session:
            # Bodies that are written meanwhile are left to the next call.
            until = await queries.last_body(session)
        while candidates := await self._candidates(codecs, after, until):
            on_progress(OperationProgress("compressing", after, until))
            after = candidates[-1].position
            chosen = [
                candidate
                for candidate in candidates
                if candidate.type in compressors or candidate.codec >= FIRST_DICTIONARY_CODEC
            ]
            start = size = 0
            for end, candidate in enumerate(chosen):
                if end - start >= self._pace.rows or (end > start and size + candidate.raw_len > _TRANSACTION_SIZE):
                    await self._store_part_again(chosen[start:end], compressors)
                    start, size = end, 0
                size += candidate.raw_len
            await self._store_part_again(chosen[start:], compressors)

    async def _candidates(self, codecs: Collection[int], after: int, until: int) -> list[Candidate]:
        async with self._session.dialect.read() as session:
            return await queries.candidates(
                session, except_codecs=codecs, after=after, until=until, limit=_SEARCHED_AT_ONCE
            )

    async def _store_part_again(self, part: Sequence[Candidate], compressors: Mapping[str, _Numbered]) -> None:
        async with self._session.dialect.read() as session:
            bodies = await bodies_at(session, [candidate.position for candidate in part])
        forms = [
            form
            for candidate in part
            if candidate.position in bodies
            and (form := _other_form(candidate, *bodies[candidate.position], compressors.get(candidate.type)))
            is not None
        ]
        if not forms:
            return
        codecs_before = {candidate.position: candidate.codec for candidate in part}
        async with self._transaction():
            # Another process may have removed a body, stored it in another form, or emptied a dictionary meanwhile.
            codecs = await queries.codecs_at(self._session, [form.position for form in forms])
            usable = {PLAIN, ZLIB, *await self._usable({form.codec for form in forms} - {PLAIN, ZLIB})}
            rows: list[Row] = [
                form
                for form in forms
                if codecs.get(form.position) == codecs_before[form.position] != form.codec and form.codec in usable
            ]
            if rows:
                await self._session.write(Changes({}, {}, {}, {_FORM: rows}))
        self.counts.bodies += len(rows)

    async def _usable(self, codecs: Collection[int]) -> list[int]:
        """Return the codecs of the dictionaries that have their content and all their samples.

        The caller must hold the write lock.

        The search for the samples takes longer than the rest of a transaction. Every removal of a body appends an event
        to the stream of the store, and a dictionary is emptied only after a removal. So the last result is valid until
        this stream has a new event.
        """
        version = await last_version(self._session, STORE_STREAM)
        if version != self._version:
            self._version, self._intact = version, {}
        if unknown := [codec for codec in codecs if codec not in self._intact]:
            dictionaries = {dictionary.codec: dictionary for dictionary in await queries.with_content(self._session)}
            for codec in unknown:
                dictionary = dictionaries.get(codec)
                self._intact[codec] = dictionary is not None and not await queries.lacks_samples(
                    self._session, dictionary
                )
        return [codec for codec in codecs if self._intact[codec]]

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
        await self._pace.pause(seconds)
        self.counts.longest_seconds = self._pace.longest_seconds
        await self._session.rest()


_Numbered: TypeAlias = tuple[int, DictionaryCompressor]
"""A dictionary with its number, which is the codec of the bodies that are compressed with it."""


class _Sample(NamedTuple):
    """A body from which a dictionary is trained."""

    position: int
    raw: bytes
    stored_len: int


class _StoredForm(NamedTuple):
    """The new codec and the new bytes of a stored body."""

    position: int
    codec: int
    body: bytes


def _other_form(candidate: Candidate, codec: int, stored: bytes, compressor: _Numbered | None) -> _StoredForm | None:
    """Return the new form of a stored body; None if the body keeps its form."""
    try:
        raw = raw_json(codec, stored)
    except StoreError:
        return None
    if hashlib.sha256(raw).digest() != candidate.sha256:
        return None  # `verify` reports it
    if compressor is not None:
        number, with_dictionary = compressor
        compressed = with_dictionary.compress(raw)
        is_smaller = len(compressed) < _WORTHWHILE * candidate.stored_len or candidate.codec >= FIRST_DICTIONARY_CODEC
        if is_smaller and with_dictionary.decompress(compressed) == raw:
            return _StoredForm(candidate.position, number, compressed)
    if candidate.codec < FIRST_DICTIONARY_CODEC:
        return None
    body = encode_body(raw)
    return _StoredForm(candidate.position, body.codec, body.stored)
