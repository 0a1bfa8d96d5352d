"""Results of queries equal an evaluation of every row, in few statements."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import orjson
import pytest
from sqlalchemy import Table
from sqlalchemy.sql import ClauseElement

from store.db.dialect import Changes, Dialect, NamedRow, Params, ReadSession, Row, Sql, dialect_for
from store.db.queries import filters, pages
from store.db.queries.bodies import payload
from store.db.queries.filters import (
    ATTEMPTS,
    RESOURCES,
    ROLLOUTS,
    SPANS,
    WORKERS,
    FilterCondition,
    FilterQuery,
    Noun,
    Values,
)
from store.db.queries.scanners import unscanned
from store.db.tables import core as core_tables
from store.db.url import parse
from store.errors import Corrupt, Incompatible, Invalid
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import spans as span_mapping
from store.validation.json_limits import encode_body
from store.validation.scores import VersionKey
from tests.torture import IS_TORTURE

TEXTS = ["a", "b", "B", "ab", "é", "_", "%", "10", "9", "", "🙂", "\uffee"]
STATUSES = ["queuing", "running", "failed"]


@pytest.fixture
async def dialect(durable_url: str) -> AsyncIterator[Dialect]:
    url = parse(durable_url)
    dialect = dialect_for(url)(url, None)
    await dialect.open(create=True)
    yield dialect
    await dialect.close()


async def write(dialect: Dialect, rows: dict[Table, list[Row]]) -> None:
    writer = await dialect.writer()
    try:
        await writer.begin()
        await writer.write(Changes({table: content for table, content in rows.items() if content}, {}, {}))
        await writer.commit()
    finally:
        await writer.close()


@dataclass
class Counting(ReadSession):
    """A session that remembers what it was asked."""

    session: ReadSession
    texts: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.dialect = self.session.dialect

    async def fetch(self, sql: Sql, params: Params) -> Sequence[NamedRow]:
        self.texts.append(sql.text)
        return await self.session.fetch(sql, params)

    async def stream(self, sql: Sql, params: Params, *, batch: int = 1000) -> AsyncIterator[Sequence[NamedRow]]:
        self.texts.append(sql.text)
        async for rows in self.session.stream(sql, params, batch=batch):
            yield rows


def row_of(table: Table, **values: Any) -> Row:
    """Return a row with these values; what has to have one and is not named is 0 or empty."""
    unknown = values.keys() - {column.name for column in table.columns}
    assert not unknown
    return tuple(
        values.get(column.name, None if column.nullable else 0 if column.type.python_type in {int, float} else "{}")
        for column in table.columns
    )


def body_row(position: int, content: dict[str, Any]) -> Row:
    body = encode_body(orjson.dumps(content))
    return row_of(core_tables.bodies, position=position, codec=body.codec, raw_len=body.raw_len, body=body.stored)


class Crowd:
    """Random rows of every table, and the same as a look at each of them finds it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.rows: dict[Table, list[Row]] = {table: [] for table in (*core_tables.PROJECTIONS, *core_tables.SIGNALS)}
        self.rows[core_tables.bodies] = []
        self.rows[core_tables.events] = []
        self.values: dict[str, list[Values]] = {
            noun.name: [] for noun in (ROLLOUTS, ATTEMPTS, SPANS, RESOURCES, WORKERS)
        }
        self.position = 0
        for number in range(25):
            self.rollout(number)
            self.worker(number)
            self.resources(number)
        self.rows[core_tables.commits] = [row_of(core_tables.commits, commit_id=1, chain_hash=b"", rollouts=25)]

    def maybe(self, *values: Any) -> Any:
        return self.dice.choice([None, *values])

    def next_position(self, **content: Any) -> int:
        self.position += 1
        # Some bodies are small, some compressed, some dropped.
        if self.dice.random() < 0.9:
            filler = {"filler": "x" * 300} if self.dice.random() < 0.5 else {}
            self.rows[core_tables.bodies].append(body_row(self.position, content | filler))
        return self.position

    def add(self, noun: Noun, **values: Any) -> None:
        self.rows[noun.table].append(row_of(noun.table, **values))
        self.values[noun.name].append(values)

    def compute(self, **values: Any) -> None:
        """Give the last rollout values that are in no column of its table."""
        self.values["rollouts"][-1] = {**self.values["rollouts"][-1], **values}

    def rollout(self, number: int) -> None:
        dice, rollout_id = self.dice, f"{dice_text(self.dice)}-{number}"
        position = self.next_position(input=number, metadata={})
        count = dice.randint(0, 3)
        self.add(
            ROLLOUTS,
            rollout_id=rollout_id,
            status=dice.choice(STATUSES),
            mode=self.maybe("train", "val"),
            resources_id=self.maybe(*TEXTS),
            config=orjson.dumps({"max_attempts": 2}).decode(),
            start_at=dice.randint(1, 5),
            end_at=self.maybe(1, 2, 3),
            group_id=self.maybe(*TEXTS),
            step=self.maybe(-1, 2, 10),
            plan_key=f"plan {number}" if dice.random() < 0.7 else None,
            resources_version=self.maybe(1, 2),
            input_position=position,
            metadata_position=position,
            attempt_count=count,
            last_reward=0.0,
            first_position=position,
            last_position=position,
        )
        labels = sorted(dice.sample(TEXTS, dice.randint(0, 2)))
        self.rows[core_tables.labels] += [(rollout_id, label, position) for label in labels]
        self.compute(label=labels, reward=None, scan_match=[])
        for sequence in range(1, count + 1):
            self.attempt(rollout_id, sequence, None)
        if dice.random() < 0.3:
            # A claim that was released had the number that is now another's, or nobody's.
            self.attempt(rollout_id, dice.randint(max(count, 1), count + 1), self.position)

    def attempt(self, rollout_id: str, sequence: int, released: int | None) -> None:
        dice, position = self.dice, self.next_position(metadata={"n": sequence})
        beat, stamped = self.maybe(1.5, 2.5), self.maybe(10, 20)
        signal = self.maybe(0.5, 3.5), dice.choice([5, 15, 25])
        attempt_id = f"at-{position}"
        values: dict[str, Any] = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence,
            "status": dice.choice(["preparing", "failed"]),
            "worker_id": self.maybe(*TEXTS),
            "start_at": dice.randint(1, 5),
            "end_at": self.maybe(1, 2, 3),
            "last_heartbeat_time": beat,
            "heartbeat_stamped_at": stamped,
            "metadata_position": self.maybe(position),
            "released_position": released,
            "first_position": position,
        }
        self.rows[core_tables.attempts].append(row_of(core_tables.attempts, **values))
        if dice.random() < 0.5:
            self.rows[core_tables.attempt_signals].append((rollout_id, attempt_id, *signal))
            if signal[1] > (stamped or 0):
                values["last_heartbeat_time"] = signal[0]
        is_match = self.maybe(0, 1)
        version = dice.choice(["v1", "v2"])
        self.rows[core_tables.scans].append((rollout_id, position, attempt_id, "hacks", version, is_match, None))
        matches = [f"hacks@{version}"] if is_match else []
        if released is None:
            self.values["attempts"].append(values)
            rewarded = [self.span(rollout_id, attempt_id) for _ in range(dice.randint(0, 6))]
            last = max((place for place in rewarded if place is not None), default=None)
            self.compute(reward=None if last is None else last[-1], scan_match=matches)

    def span(self, rollout_id: str, attempt_id: str) -> tuple[float, ...] | None:
        """Add a span; return its place among the spans of its attempt and its reward, if it has one."""
        dice = self.dice
        position = self.next_position(status={"status_code": "OK"}, attributes={}, events=[], links=[])
        self.add(
            SPANS,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            span_id=f"{dice_text(dice)}{position}",
            sequence_id=dice.randint(-1, 3),
            trace_id=dice_text(dice),
            parent_id=self.maybe(*TEXTS),
            name=dice_text(dice),
            start_time=self.maybe(1.0, 2.0),
            end_time=self.maybe(1.0, 2.0),
            position=position,
        )
        if dice.random() < 0.5:
            return None
        span, value = self.values["spans"][-1], float(dice.randint(-2, 2))
        number, start, end = span["sequence_id"], span["start_time"], span["end_time"]
        data = orjson.dumps({"sequence_id": number, "start": start, "end": end}).decode()
        self.rows[core_tables.events].append(
            row_of(core_tables.events, position=position, stream="rollout", version=position, type="", data=data)
        )
        for ordinal, reward in enumerate([value, value + 50]):
            self.rows[core_tables.rewards].append((rollout_id, position, ordinal, attempt_id, None, reward))
        return number, inf if start is None else start, inf if end is None else end, position, value

    def worker(self, number: int) -> None:
        dice, worker_id = self.dice, f"{dice_text(self.dice)}{number}"
        values: dict[str, Any] = {
            "worker_id": worker_id,
            "status": dice.choice(["idle", "busy", "unknown"]),
            "current_rollout_id": self.maybe(*TEXTS),
            "last_busy_at": self.maybe(1, 3),
            "last_idle_at": self.maybe(1, 3),
            "first_position": self.next_position(),
        }
        self.rows[core_tables.workers].append(row_of(core_tables.workers, **values))
        signals: dict[str, Any] = dict.fromkeys(
            ("last_heartbeat_at", "last_dequeue_at", "last_busy_at", "last_idle_at")
        )
        if dice.random() < 0.5:
            signals = {name: self.maybe(2, 4) for name in signals}
            self.rows[core_tables.worker_signals].append(
                row_of(core_tables.worker_signals, worker_id=worker_id, **signals)
            )
        for name, value in signals.items():
            times = [at for at in (values.get(name), value) if at is not None]
            values[name] = max(times, default=None)
        self.values["workers"].append(values | {"current_attempt_id": None})

    def resources(self, number: int) -> None:
        position = self.next_position(resources={})
        self.add(
            RESOURCES,
            resources_id=f"{dice_text(self.dice)}{number}",
            version=self.dice.randint(1, 3),
            create_at=self.dice.randint(1, 3),
            update_at=self.dice.randint(1, 3),
            body_position=position,
            first_position=position,
            last_position=position,
        )

    def query(self, noun: Noun) -> FilterQuery:
        dice = self.dice
        texts = [name for name, spec in noun.fields.items() if spec.kind == "text"]
        conditions: list[FilterCondition] = []
        for _ in range(dice.choice([0, 1, 1, 2, 3])):
            if noun is ROLLOUTS and dice.random() < 0.4:
                conditions.append(
                    dice.choice(
                        [
                            FilterCondition("step", "in", dice.choice([[10, -1], [2], []])),
                            FilterCondition("resources_version", "in", [2]),
                            FilterCondition("label", "in", dice.sample(TEXTS, 3)),
                            FilterCondition("scan_match", "is", "hacks@v1"),
                            FilterCondition("reward", "min", dice.choice([-1, 0.0])),
                            FilterCondition("reward", "max", 0),
                        ]
                    )
                )
                continue
            name = dice.choice(texts)
            some = [row[noun.fields[name].column] for row in dice.sample(self.values[noun.name], 3)]
            choices: list[str] = [value for value in some if value is not None] or ["none"]
            conditions.append(
                dice.choice(
                    [
                        FilterCondition(name, "is", choices[0]),
                        FilterCondition(name, "in", dice.choice([choices, choices, []])),
                        FilterCondition(name, "contains", dice.choice([choices[0][:2], dice_text(dice)])),
                    ]
                )
            )
        return filters.query(
            noun,
            conditions,
            filter_logic=dice.choice(["and", "or"]),
            sort_by=dice.choice([None, *(name for name in noun.fields if name != "scan_match")]),
            sort_order=dice.choice(["asc", "desc"]),
            limit=dice.choice([-1, -1, 0, 1, 4, 100]),
            offset=dice.choice([0, 0, 0, 1, 30]),
        )

    def expected(self, asked: FilterQuery, **within: str) -> tuple[list[Values], int]:
        rows = [row for row in self.values[asked.noun.name] if within.items() <= row.items()]
        matches = [row for row in rows if filters.matches(asked, row)]
        return list(filters.page(asked, filters.arranged(asked, matches))), len(matches)


def dice_text(dice: random.Random) -> str:
    return dice.choice([text for text in TEXTS if text])


def keys(rows: Sequence[Values], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
@pytest.mark.torture
async def test_query_equals_a_filter_of_all_rows_in_python(dialect: Dialect, seed: int) -> None:
    few, many = (60, 120) if IS_TORTURE else (15, 30)
    crowd = Crowd(seed)
    await write(dialect, crowd.rows)
    rollout_ids = [row["rollout_id"] for row in crowd.values["rollouts"]]
    async with dialect.read() as session:
        for _ in range(many):
            asked = crowd.query(ROLLOUTS)
            expected, total = crowd.expected(asked)
            page = await pages.rollouts(session, asked, rollout_mapping.rollout_of_page)
            assert [one.rollout_id for one in page.items] == [row["rollout_id"] for row in expected]
            assert page.total == total
        for _ in range(few):
            asked = crowd.query(WORKERS)
            expected, total = crowd.expected(asked)
            workers = await pages.workers(session, asked, rollout_mapping.worker_of_page)
            assert [one.worker_id for one in workers.items] == [row["worker_id"] for row in expected]
            assert workers.total == total
            assert [one.last_busy_time for one in workers.items] == [
                None if row["last_busy_at"] is None else row["last_busy_at"] / 1_000_000 for row in expected
            ]
        for _ in range(few):
            asked = crowd.query(RESOURCES)
            expected, total = crowd.expected(asked)
            resources = await pages.resources(session, asked, rollout_mapping.resources_of_page)
            assert [one.resources_id for one in resources.items] == [row["resources_id"] for row in expected]
            assert resources.total == total
        for _ in range(few):
            asked, rollout_id = crowd.query(ATTEMPTS), crowd.dice.choice(rollout_ids)
            expected, total = crowd.expected(asked, rollout_id=rollout_id)
            attempts = await pages.attempts(session, rollout_id, asked, rollout_mapping.attempt_of_page)
            assert [one.attempt_id for one in attempts.items] == [row["attempt_id"] for row in expected]
            assert [one.last_heartbeat_time for one in attempts.items] == [
                row["last_heartbeat_time"] for row in expected
            ]
            assert attempts.total == total
        for _ in range(many):
            asked, rollout_id = crowd.query(SPANS), crowd.dice.choice(rollout_ids)
            within = {"rollout_id": rollout_id}
            of_rollout = [row["attempt_id"] for row in crowd.values["attempts"] if row["rollout_id"] == rollout_id]
            which = crowd.dice.choice([None, None, "latest", *of_rollout])
            if which is not None:
                # The attempts were made in the order of their numbers.
                within["attempt_id"] = of_rollout[-1] if which == "latest" and of_rollout else which
            expected, total = crowd.expected(asked, **within)
            if asked.logic == "or" and not asked.conditions:
                expected, total = [], 0
            spans = await pages.spans(session, rollout_id, which, asked, span_mapping.span_of_page)
            assert [one.span_id for one in spans.items] == [row["span_id"] for row in expected]
            assert spans.total == total


async def test_a_rollout_carries_its_latest_attempt_that_was_not_released(dialect: Dialect) -> None:
    crowd = Crowd(7)
    await write(dialect, crowd.rows)
    latest = {row["rollout_id"]: row for row in crowd.values["attempts"]}
    async with dialect.read() as session:
        page = await pages.rollouts(session, filters.query(ROLLOUTS), rollout_mapping.rollout_of_page)
        for one in page.items:
            expected = latest.get(one.rollout_id)
            attempt = getattr(one, "attempt", None)
            assert (expected is None) == (attempt is None)
            row = await pages.latest_attempt(session, one.rollout_id)
            assert (row and rollout_mapping.attempt_of_page(row)) == attempt
            alone = await pages.rollout(session, one.rollout_id)
            assert alone is not None
            assert rollout_mapping.rollout_of_page(alone) == one
            if expected is not None:
                assert attempt is not None
                assert attempt.attempt_id == expected["attempt_id"]
                assert attempt.last_heartbeat_time == expected["last_heartbeat_time"]


async def test_a_page_takes_one_statement_when_its_end_is_in_sight_and_two_when_the_rest_is_counted(
    dialect: Dialect,
) -> None:
    await write(dialect, Crowd(1).rows)
    async with dialect.read() as session:
        for limit, offset, statements in (
            (-1, 0, 1),
            (-1, 3, 1),
            (100, 0, 1),
            (3, 24, 1),
            (0, 0, 1),
            (3, 0, 2),
            (3, 99, 2),
        ):
            counting = Counting(session)
            asked = filters.query(ROLLOUTS, limit=limit, offset=offset)
            page = await pages.rollouts(counting, asked, rollout_mapping.rollout_of_page)
            assert page.total == 25
            assert len(counting.texts) == statements


async def test_queries_of_one_shape_are_compiled_once(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations: list[ClauseElement] = []
    compile_one = dialect.sql

    def count(statement: ClauseElement) -> Sql:
        compilations.append(statement)
        return compile_one(statement)

    monkeypatch.setattr(dialect, "sql", count)
    # Other tests of this process have compiled the same statements.
    monkeypatch.setattr(dialect, "compiled", {})
    async with dialect.read() as session:
        for number in range(5):
            condition = FilterCondition("status", "in", [str(number)])
            asked = filters.query(ROLLOUTS, [condition], limit=number + 1, offset=number + 1)
            await pages.rollouts(session, asked, rollout_mapping.rollout_of_page)
            await pages.rollout(session, str(number))
    # The page, the count, and the single row.
    assert len(compilations) == 3


async def test_the_order_of_creation_is_read_from_an_index(tmp_path: Any) -> None:
    url = parse(f"sqlite:///{tmp_path / 'plan.db'}")
    dialect = dialect_for(url)(url, None)
    await dialect.open(create=True)
    async with dialect.read() as session:
        counting = Counting(session)
        await pages.rollouts(counting, filters.query(ROLLOUTS), rollout_mapping.rollout_of_page)
        plan = await session.fetch(Sql(f"EXPLAIN QUERY PLAN {counting.texts[0]}", (), {}), {})
    await dialect.close()
    assert not [step for *_, step in plan if "TEMP B-TREE" in step]


async def test_filters_and_orders_read_other_tables_by_their_keys(tmp_path: Any) -> None:
    url = parse(f"sqlite:///{tmp_path / 'plan.db'}")
    dialect = dialect_for(url)(url, None)
    await dialect.open(create=True)
    plans: list[str] = []
    async with dialect.read() as session:
        for query in (
            filters.query(ROLLOUTS, [FilterCondition("reward", "min", 0.5)]),
            filters.query(ROLLOUTS, sort_by="reward"),
            filters.query(ROLLOUTS, [FilterCondition("label", "in", ["hard"])]),
            filters.query(ROLLOUTS, [FilterCondition("scan_match", "is", "hacks@v1")]),
            filters.query(ROLLOUTS, [FilterCondition("resources_version", "in", [3])], sort_by="step"),
        ):
            counting = Counting(session)
            await pages.rollouts(counting, query, rollout_mapping.rollout_of_page)
            plans += await steps_of(session, counting)
        counting = Counting(session)
        of_many = pages.spans(counting, ["a", "b"], None, filters.query(SPANS), span_mapping.span_of_page)
        await of_many
        plans += await steps_of(session, counting)
        counting = Counting(session)
        await unscanned(
            counting, key=VersionKey("hacks", "v1"), limit=9, after=None, retry_errors=False, changed_after=1
        )
        changed = await steps_of(session, counting)
        # Only the rollouts with later events are read, by their ids.
        assert changed[0].startswith("SEARCH rollouts USING")
        assert "rollout_id=?" in changed[0]
        plans += changed
    await dialect.close()
    assert any("rewards" in step for step in plans)
    assert any("spans" in step for step in plans)
    scanned = {step.split()[1] for step in plans if step.startswith("SCAN ")}
    assert scanned.isdisjoint({"rewards", "spans", "attempts", "labels", "events", "bodies", "scans"})


async def steps_of(session: ReadSession, counting: Counting) -> list[str]:
    """Return the steps of SQLite's plans for the statements that were executed, with 1 for each parameter."""
    texts = [text.replace("?", "1") for text in counting.texts]
    plans = [await session.fetch(Sql(f"EXPLAIN QUERY PLAN {text}", (), {}), {}) for text in texts]
    return [step for plan in plans for *_, step in plan]


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\ud800"])
async def test_ids_that_no_database_can_be_asked_for_are_refused_by_name(dialect: Dialect, bad: str) -> None:
    async with dialect.read() as session:
        for call, name in (
            (pages.rollout(session, bad), "rollout_id"),
            (pages.latest_attempt(session, bad), "rollout_id"),
            (pages.worker(session, bad), "worker_id"),
            (pages.resources_by_id(session, bad), "resources_id"),
            (pages.finished(session, [bad]), "ids"),
            (
                pages.attempts(session, bad, filters.query(ATTEMPTS), rollout_mapping.attempt_of_page),
                "rollout_id",
            ),
            (
                pages.spans(session, bad, None, filters.query(SPANS), span_mapping.span_of_page),
                "rollout_id",
            ),
            (
                pages.spans(session, "ro", bad, filters.query(SPANS), span_mapping.span_of_page),
                "attempt_id",
            ),
        ):
            with pytest.raises(Invalid) as refused:
                await call
            assert refused.value.field == name


async def test_the_latest_resources_are_those_written_last(dialect: Dialect) -> None:
    async with dialect.read() as session:
        assert await pages.latest_resources(session) is None
    positions = {"older": (1, 9), "newer": (5, 5)}
    rows = [
        row_of(core_tables.resources, resources_id=name, version=1, first_position=first, last_position=last)
        for name, (first, last) in positions.items()
    ]
    await write(dialect, {core_tables.resources: rows})
    async with dialect.read() as session:
        row = await pages.latest_resources(session)
        assert row is not None
        assert rollout_mapping.resources_of_page(row).resources_id == "older"


async def test_waiting_and_ended_rollouts_are_counted(dialect: Dialect) -> None:
    statuses = {"a": "succeeded", "b": "cancelled", "c": "failed", "d": "running"}
    rollouts = [
        row_of(core_tables.rollouts, rollout_id=name, status=status, first_position=number)
        for number, (name, status) in enumerate(statuses.items(), start=1)
    ]
    rows: dict[Table, list[Row]] = {
        core_tables.rollouts: rollouts,
        core_tables.queue: [(7, "e"), (8, "f")],
        core_tables.watch: [("d", 500), ("e", 300)],
    }
    async with dialect.read() as session:
        assert await pages.queue_depth(session) == 0
        assert await pages.next_checks(session, 0) == (None, None)
        assert await pages.totals(session) == (0,) * len(pages.TOTALS)
    await write(dialect, rows)
    async with dialect.read() as session:
        assert await pages.queue_depth(session) == 2
        assert await pages.next_checks(session, 301) == (300, 500)
        ended = await pages.finished(session, ["d", "a", "none", "a", "b", "c"])
        assert ended == {"a": True, "b": True, "c": True, "d": False}
        by_id = await pages.rollouts_by_id(session, ["d", "none", "a", "a"], rollout_mapping.plain_rollout_of_page)
        assert {key: one.status for key, one in by_id.items()} == {"a": "succeeded", "d": "running"}


@pytest.mark.parametrize("content", [{"input": None}, {"input": "x" * 5000, "metadata": {"é": [1, 1.0, True]}}])
def test_a_body_reads_back_as_it_was_written(content: dict[str, Any]) -> None:
    body = encode_body(orjson.dumps(content))
    assert payload(body.codec, body.stored) == content


def test_a_body_that_is_not_there_is_no_payload() -> None:
    assert payload(None, None) is None


@pytest.mark.parametrize("codec,stored,error", [(9, b"{}", Incompatible), (1, b"{}", Corrupt), (0, b"{", Corrupt)])
def test_malformed_body_is_refused(codec: int, stored: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        payload(codec, stored)
