"""The index of search. Decision 108.

Each distinct text of a rollout is a row of `search_documents`. Its words are in a table of FTS5 on SQLite, and in the
column `words` on Postgres, as codes of `lexicon`. The text itself is only in the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy import (
    Index as TableIndex,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from store.db.dialect import ReadSession, Sql
from store.db.index_place import IndexSession
from store.domain.rows import row_maker
from store.indexing.index import Index, IndexedEvent
from store.indexing.search.documents import EVENT_TYPES, SearchText, documents_of
from store.indexing.search.lexicon import assigned_codes, codes_in, lexicon, remove_codes
from store.indexing.search.words import parts_of

_metadata = MetaData()
_BigId: Final = BigInteger().with_variant(Integer(), "sqlite")
_KEYS_AT_ONCE: Final = 500
_REMOVED_AT_ONCE: Final = 20_000
"""The maximum number of documents whose words are deleted after one scan of all words, on SQLite."""
_MOST_SCANS: Final = 5
"""If a removal needs more scans than this, the whole index is made again instead."""

rollout_numbers = Table(
    "search_rollouts",
    _metadata,
    Column("number", _BigId, primary_key=True, autoincrement=False),
    Column("rollout_id", Text, nullable=False, unique=True),
)
documents = Table(
    "search_documents",
    _metadata,
    # The numbers ascend in the order of the log.
    Column("id", _BigId, primary_key=True, autoincrement=False),
    # The position of the first event that contains the text.
    Column("position", BigInteger, nullable=False),
    # `SearchText.key`, which is equal for repetitions of a text in a rollout.
    Column("hash", BigInteger, nullable=False),
    Column("rollout", Integer, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    # The number of the part of the text, from 0. Only long texts have several parts.
    Column("part", SmallInteger, nullable=False),
    Column("name", Text, nullable=False),
    TableIndex("ix_search_documents_rollout", "rollout", "hash"),
)
# On Postgres, the table has one more column, with the codes of the words of the document.
coded_documents = Table(
    "search_documents",
    MetaData(),
    *(Column(column.name, column.type) for column in documents.columns),
    Column("words", Text(collation="C")),
)
CHARACTERS: Final = "string_to_array(search_documents.words, NULL)"
"""The expression that the index of words on Postgres contains."""

_FTS: Final = (
    "CREATE VIRTUAL TABLE search_words USING fts5(text, meta, content = '', columnsize = 0, tokenize = 'ascii')"
)
_INSTANCES: Final = "CREATE VIRTUAL TABLE search_instances USING fts5vocab(search_words, instance)"
_INSTANCES_OF: Final = (
    "SELECT doc, col, term FROM search_instances WHERE doc IN (SELECT value FROM json_each(?))"
    " ORDER BY doc, col, offset"
)
_FREQUENT: Final = Sql(
    "SELECT DISTINCT character FROM (SELECT words FROM search_documents ORDER BY id DESC LIMIT 2000) AS latest,"
    " unnest(string_to_array(latest.words, NULL)) AS character",
    (),
    {},
    None,
    row_maker(("character",)),
)
_UNUSED: Final = Sql(
    "SELECT code FROM unnest($1::text[]) AS code WHERE NOT EXISTS (SELECT FROM search_documents"
    " WHERE string_to_array(search_documents.words, NULL) @> string_to_array(code, NULL)"
    " AND strpos(search_documents.words, code) > 0)",
    ("codes",),
    {},
    None,
    row_maker(("code",)),
)
# A rollout may have hundreds of thousands of documents, so only the keys of new texts are looked up.
_EXISTING_ON_SQLITE: Final = Sql(
    "SELECT hash FROM json_each(?) AS key CROSS JOIN search_documents"
    " ON rollout = json_extract(key.value, '$[0]') AND hash = json_extract(key.value, '$[1]')",
    ("keys",),
    {},
    None,
    row_maker(("hash",)),
)
_EXISTING_ON_POSTGRES: Final = Sql(
    "SELECT hash FROM unnest($1::int[], $2::bigint[]) AS keys(rollout, hash)"
    " JOIN search_documents USING (rollout, hash)",
    ("rollouts", "hashes"),
    {},
    None,
    row_maker(("hash",)),
)
_INSERT_WORDS: Final = "INSERT INTO search_words (rowid, meta, text) VALUES (?, ?, ?)"
_DELETE_WORDS: Final = "INSERT INTO search_words (search_words, rowid, meta, text) VALUES ('delete', ?, ?, ?)"


class _Part(NamedTuple):
    """A row of `search_documents`, and the words of its text."""

    id: int
    rollout: int
    position: int
    document: SearchText
    hash: int
    part: int
    words: list[str]


def kind_word(kind: int) -> str:
    """Return the word that marks the kind of a document."""
    return f"k{kind}"


def name_word(name: str) -> str:
    """Return the word that marks the name of a document."""
    return "n" + hashlib.blake2b(name.casefold().encode(errors="surrogatepass"), digest_size=6).hexdigest()


def rollout_word(number: int) -> str:
    """Return the word that marks the rollout of a document."""
    return f"r{number}"


def is_sqlite(compiler_name: str) -> bool:
    """Return whether a database stores the words of documents in a table of FTS5."""
    return compiler_name == "sqlite"


class SearchIndex(Index):
    """The texts of rollouts and their words."""

    name = "search"
    version = 3
    types = EVENT_TYPES
    tables = (rollout_numbers, documents, lexicon)

    @property
    def table_names(self) -> list[str]:
        return ["search_instances", *super().table_names, "search_words"]

    async def create(self, session: IndexSession) -> None:
        compiler = session.dialect.compiler
        for table in self.tables[: 2 if is_sqlite(compiler.name) else None]:
            await session.execute(str(CreateTable(table).compile(dialect=compiler)))
        for index in sorted(documents.indexes, key=lambda index: str(index.name)):
            await session.execute(str(CreateIndex(index).compile(dialect=compiler)))
        if is_sqlite(compiler.name):
            await session.execute(_FTS)
            await session.execute(_INSTANCES)
        else:
            await session.execute('ALTER TABLE search_documents ADD COLUMN words text COLLATE "C" NOT NULL')
            await session.execute(
                f"CREATE INDEX ix_search_documents_words ON search_documents USING gin ({CHARACTERS})"
            )
            # With the default, the estimates for rare words are so high that a search would read all documents.
            await session.execute("ALTER INDEX ix_search_documents_words ALTER COLUMN 1 SET STATISTICS 1000")

    async def fold(self, session: IndexSession, events: Sequence[IndexedEvent]) -> None:
        texts: dict[int, tuple[IndexedEvent, SearchText]] = {}
        for event in events:
            for document in documents_of(event):
                texts.setdefault(document.key(event.rollout_id), (event, document))
        repeated = await self._existing(session, {key: event.rollout_id for key, (event, _) in texts.items()})
        texts = {key: value for key, value in texts.items() if key not in repeated}
        if not texts:
            return
        numbers = await self._numbers(session, sorted({event.rollout_id for event, _ in texts.values()}))
        last = (await session.fetch(session.dialect.sql(select(func.max(documents.c.id).label("last"))), {}))[0].last
        rows: list[_Part] = []
        for key, (event, document) in texts.items():
            for part, (_, words) in enumerate(parts_of(document.text)):
                number = (last or 0) + len(rows) + 1
                rows.append(_Part(number, numbers[event.rollout_id], event.position, document, key, part, words))
        if rows:
            await self._write(session, rows)

    async def _existing(self, session: IndexSession, rollout_ids: Mapping[int, str]) -> set[int]:
        """Return the keys of texts that the index contains. The argument maps keys to rollouts."""
        numbers = await self._existing_numbers(session, sorted(set(rollout_ids.values())))
        keys = [(numbers[rollout_id], key) for key, rollout_id in rollout_ids.items() if rollout_id in numbers]
        if not keys:
            return set()
        if is_sqlite(session.dialect.compiler.name):
            rows = await session.fetch(_EXISTING_ON_SQLITE, {"keys": session.dialect.keys_param(keys)})
        else:
            rollouts, hashes = map(list, zip(*keys, strict=True))
            rows = await session.fetch(_EXISTING_ON_POSTGRES, {"rollouts": rollouts, "hashes": hashes})
        return {row.hash for row in rows}

    async def _numbers(self, session: IndexSession, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of rollouts. New rollouts get the next numbers."""
        numbers = await self._existing_numbers(session, rollout_ids)
        fresh = [rollout_id for rollout_id in rollout_ids if rollout_id not in numbers]
        if fresh:
            statement = session.dialect.sql(select(func.max(rollout_numbers.c.number).label("last")))
            last = (await session.fetch(statement, {}))[0].last or 0
            numbers |= {rollout_id: last + index for index, rollout_id in enumerate(fresh, start=1)}
            await session.write(rollout_numbers, [(numbers[rollout_id], rollout_id) for rollout_id in fresh])
        return numbers

    async def _existing_numbers(self, session: IndexSession, rollout_ids: Sequence[str]) -> dict[str, int]:
        dialect, column = session.dialect, rollout_numbers.c
        statement = select(column.number, column.rollout_id).where(dialect.any_of(column.rollout_id, "ids"))
        rows = await session.fetch(dialect.sql(statement), {"ids": dialect.list_param(list(rollout_ids))})
        return {row.rollout_id: row.number for row in rows}

    async def _write(self, session: IndexSession, rows: Sequence[_Part]) -> None:
        values = [
            (
                *(row.id, row.position, row.hash, row.rollout),
                *(int(row.document.kind), row.part, row.document.name.replace("\0", "")),
            )
            for row in rows
        ]
        if is_sqlite(session.dialect.compiler.name):
            await session.write(documents, values)
            words = [(row.id, _meta(row.document, row.rollout), " ".join(row.words)) for row in rows]
            await session.execute(_INSERT_WORDS, words)
        else:
            texts = [
                (*(f"§{word}" for word in _meta(row.document, row.rollout).split()[:2]), *row.words) for row in rows
            ]
            codes = await assigned_codes(session, (word for words in texts for word in words))
            coded = ["".join([codes[word] for word in words]) for words in texts]
            await session.write(coded_documents, [(*value, text) for value, text in zip(values, coded, strict=True)])

    async def remove(self, session: IndexSession, rollout_ids: Sequence[str]) -> bool:
        dialect = session.dialect
        numbers = list((await self._existing_numbers(session, rollout_ids)).values())
        if is_sqlite(dialect.compiler.name):
            statement = select(documents.c.id).where(dialect.any_of(documents.c.rollout, "numbers"))
            rows = await session.fetch(dialect.sql(statement), {"numbers": dialect.list_param(numbers)})
            ids = [row.id for row in rows]
            if len(ids) > _REMOVED_AT_ONCE * _MOST_SCANS:
                return False
            for start in range(0, len(ids), _REMOVED_AT_ONCE):
                await self._delete_words(session, ids[start : start + _REMOVED_AT_ONCE])
            await session.delete(documents, "rollout", numbers)
        else:
            await self._delete_coded(session, numbers)
        return True

    async def _delete_coded(self, session: IndexSession, numbers: Sequence[int]) -> None:
        """Delete the documents of rollouts on Postgres, and the words that no other document contains."""
        dialect, column = session.dialect, coded_documents.c
        statement = dialect.sql(select(column.words).where(dialect.any_of(column.rollout, "numbers")))
        codes: set[str] = set()
        for start in range(0, len(numbers), _KEYS_AT_ONCE):
            part = list(numbers[start : start + _KEYS_AT_ONCE])
            for row in await session.fetch(statement, {"numbers": dialect.list_param(part)}):
                codes |= codes_in(row.words)
            await session.delete(documents, "rollout", part)
        # Most words are in one of the latest documents. Only the others are looked up, each in the index of words.
        codes -= {row.character for row in await session.fetch(_FREQUENT, {})}
        await session.execute("SET LOCAL enable_seqscan = off")
        rest, unused = sorted(codes), set[str]()
        for start in range(0, len(rest), _KEYS_AT_ONCE):
            rows = await session.fetch(_UNUSED, {"codes": rest[start : start + _KEYS_AT_ONCE]})
            unused |= {row.code for row in rows}
        if unused:
            await remove_codes(session, unused)
        await session.execute("SET LOCAL enable_seqscan = on")

    async def _delete_words(self, session: IndexSession, ids: Sequence[int]) -> None:
        """Delete the words of documents on SQLite.

        To delete a row of a table without content, FTS5 needs the words of the row. The texts are no longer in the log,
        so the words are read from the table, which takes a scan of all words.
        """
        sql = Sql(_INSTANCES_OF, ("ids",), {}, None, row_maker(("doc", "col", "term")))
        words: dict[int, dict[str, list[str]]] = {}
        for row in await session.fetch(sql, {"ids": session.dialect.list_param(list(ids))}):
            words.setdefault(row.doc, {"meta": [], "text": []})[row.col].append(row.term)
        await session.execute(
            _DELETE_WORDS, [(number, " ".join(of["meta"]), " ".join(of["text"])) for number, of in words.items()]
        )

    async def problem(self, session: ReadSession, rollout_id: str, events: Sequence[IndexedEvent]) -> str | None:
        last = events[-1].position if events else 0
        expected = {
            document.key(rollout_id)
            for event in events
            for document in documents_of(event)
            if any(True for _ in parts_of(document.text))
        }
        dialect, column = session.dialect, documents.c
        statement = select(column.id, column.rollout, column.hash, column.position)
        statement = statement.join(rollout_numbers, rollout_numbers.c.number == column.rollout)
        statement = statement.where(rollout_numbers.c.rollout_id == bindparam("of_rollout"))
        rows = await session.fetch(dialect.sql(statement), {"of_rollout": rollout_id})
        rows = [row for row in rows if row.position <= last]
        hashes = {row.hash for row in rows}
        if hashes != expected:
            return f"{len(expected - hashes)} texts are missing, {len(hashes - expected)} are not in the log"
        if rows and is_sqlite(dialect.compiler.name):
            text = "SELECT count(*) FROM search_words WHERE search_words MATCH ?"
            params = {"words": f"meta : {rollout_word(rows[0].rollout)}"}
            total = (await session.fetch(Sql(text, ("words",), {}, None, row_maker(("total",))), params))[0].total
            if total < len(rows):
                return f"the words of {len(rows) - total} texts are missing"
        return None

    async def purge(self, session: IndexSession) -> None:
        if is_sqlite(session.dialect.compiler.name):
            # Deleted words stay in the segments of the table until the segments are merged.
            await session.execute("INSERT INTO search_words (search_words) VALUES ('optimize')")


def meta_words(kind: int, name: str, rollout: int) -> str:
    """Return the words that mark the kind, the name and the rollout of a document."""
    return f"{kind_word(kind)} {name_word(name)} {rollout_word(rollout)}"


def _meta(document: SearchText, rollout: int) -> str:
    return meta_words(document.kind, document.name.replace("\0", ""), rollout)
