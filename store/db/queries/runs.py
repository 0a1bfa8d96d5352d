"""Reads of runs: attempts, forks, long texts, inputs, and the artifacts of all runs for a scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, literal, literal_column, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import log as log_queries
from store.db.queries.blobs import blob_rows
from store.db.queries.bodies import payload, raw_json
from store.db.queries.pages import LONGEST_ID, compiled
from store.db.tables import core as core_tables
from store.domain.events import Json
from store.domain.rollout import ACTIVE
from store.domain.run_events import AttemptForked
from store.semconv import DROPPED
from store.validation.json_limits import check_text

_AT_ONCE = 1000


async def payloads(session: ReadSession, positions: Sequence[int]) -> dict[int, Json]:
    """Return the payload of events by position, read from `bodies` and `blobs`. Events without payload are left out.

    The payload of an event whose payload was removed has only the key `rollbook.dropped`.
    """
    stored = await log_queries.bodies_at(session, positions)
    by_position = {position: payload(codec, body) for position, (codec, body) in stored.items()}
    elsewhere = [position for position in positions if position not in by_position]
    return await _with_blobs(session, by_position, await _hashes(session, elsewhere))


async def payloads_in(session: ReadSession, events: Sequence[NamedRow]) -> dict[int, Json]:
    """Return the payload of events as `payloads` does, from rows of `events` with codec and bytes of the bodies."""
    by_position = {row.position: payload(row.codec, row.body) for row in events if row.codec is not None}
    hashes = {
        row.position: memoryview(row.body_hash).hex()
        for row in events
        if row.codec is None and row.body_hash is not None
    }
    return await _with_blobs(session, by_position, hashes)


async def _with_blobs(
    session: ReadSession, by_position: dict[int, Json | None], hashes: dict[int, str]
) -> dict[int, Json]:
    """Add the payload of events whose bodies are blobs, given the hashes by position. Leave out events without."""
    contents = await blobs(session, list(hashes.values()))
    for position, digest in hashes.items():
        by_position[position] = payload(*contents[digest]) if digest in contents else {DROPPED: True}
    return {position: body for position, body in by_position.items() if body is not None}


async def _hashes(session: ReadSession, positions: Sequence[int]) -> dict[int, str]:
    event = core_tables.events.c
    hashes: dict[int, str] = {}
    for start in range(0, len(positions), _AT_ONCE):
        # Positions come from the database, so it is safe to make them a part of the statement.
        literals: list[ColumnElement[int]] = [
            literal_column(str(int(position))) for position in positions[start : start + _AT_ONCE]
        ]
        columns: list[ColumnElement[Any]] = [event.position, event.body_hash]
        sql = session.dialect.sql(select(*columns).where(event.position.in_(literals), event.body_hash.is_not(None)))
        hashes |= {position: bytes(digest).hex() for position, digest in await session.fetch(sql, {})}
    return hashes


async def blobs(session: ReadSession, hashes: Sequence[str]) -> dict[str, tuple[int, bytes]]:
    """Return codec and bytes of blobs by hash. Hashes without a blob are left out."""
    blob = core_tables.blobs.c
    rows = await blob_rows(session, sorted(set(hashes)), blob.codec, blob.body)
    return {row.hash: (row.codec, bytes(row.body)) for row in rows}


async def texts(session: ReadSession, hashes: Sequence[str]) -> dict[str, str]:
    """Return long texts, which are stored as blobs, by hash. Hashes without a blob are left out."""
    contents = await blobs(session, hashes)
    return {digest: raw_json(codec, body).decode() for digest, (codec, body) in contents.items()}


async def attempts(session: ReadSession, rollout_id: str) -> Sequence[NamedRow]:
    """Return the attempts of a run in order. Attempts whose claim was released (taken back) are left out.

    The columns are sequence_id, attempt_id, status, start_at (µs), rerun_seq, base, fork_version and via.
    """
    attempt = core_tables.attempts.c

    def build() -> Select[Any]:
        names = ("sequence_id", "attempt_id", "status", "start_at", "rerun_seq", "base", "fork_version", "via")
        columns: list[ColumnElement[Any]] = [attempt[name] for name in names]
        condition = and_(attempt.rollout_id == bindparam("rollout", type_=Text), attempt.released_position.is_(None))
        return select(*columns).where(condition).order_by(attempt.sequence_id)

    return await session.fetch(compiled(session, "run_attempts", build), {"rollout": rollout_id})


async def event_counts(session: ReadSession, rollout_id: str) -> dict[int, int]:
    """Return the number of run events that each attempt of a run recorded, by sequence_id."""
    run_event = core_tables.run_events.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [run_event.attempt, func.count().label("events")]
        return (
            select(*columns).where(run_event.rollout_id == bindparam("rollout", type_=Text)).group_by(run_event.attempt)
        )

    rows = await session.fetch(compiled(session, "run_events_told", build), {"rollout": rollout_id})
    return {row.attempt: row.events for row in rows}


async def forks(session: ReadSession, rollout_id: str) -> Sequence[NamedRow]:
    """Return the forks of a run in order.

    The columns are version, position and data of the fork's event, and request_id.
    """
    fork, event = core_tables.forks, core_tables.events

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [fork.c.version, event.c.position, event.c.data, fork.c.request_id]
        condition = and_(
            fork.c.rollout_id == bindparam("rollout", type_=Text), event.c.type == literal(AttemptForked.type)
        )
        source = fork.join(event, event.c.position == fork.c.position)
        return select(*columns).select_from(source).where(condition).order_by(fork.c.version)

    return await session.fetch(compiled(session, "run_forks", build), {"rollout": rollout_id})


async def forked(session: ReadSession, rollout_id: str, request_id: str) -> int | None:
    """Return the sequence_id of the attempt that a request to fork a run started; None if it started no attempt."""
    fork = core_tables.forks.c

    def build() -> Select[Any]:
        of_request = fork.request_id == bindparam("request", type_=Text)
        return select(fork.attempt).where(fork.rollout_id == bindparam("rollout", type_=Text), of_request)

    params = {"rollout": rollout_id, "request": check_text(request_id, "request_id", LONGEST_ID)}
    rows = await session.fetch(compiled(session, "run_forked", build), params)
    return rows[0].attempt if rows else None


async def active(session: ReadSession, rollout_id: str) -> int | None:
    """Return the sequence_id of the last active attempt of a run; None if no attempt is active."""
    attempt = core_tables.attempts.c

    def build() -> Select[Any]:
        condition = and_(attempt.rollout_id == bindparam("rollout", type_=Text), attempt.released_position.is_(None))
        is_active = attempt.status.in_([literal_column(f"'{status}'", Text) for status in sorted(ACTIVE)])
        return select(func.max(attempt.sequence_id).label("sequence_id")).where(condition, is_active)

    rows = await session.fetch(compiled(session, "run_active", build), {"rollout": rollout_id})
    return rows[0].sequence_id


async def companions(session: ReadSession, group_id: str, scope: str, name: str) -> Sequence[NamedRow]:
    """Return the runs of a group that saved a checkpoint with this scope and name.

    The columns are the rollout id, and the codec and bytes of the body that contains the input of the run.
    """
    rollout, saved, body = core_tables.rollouts.c, core_tables.checkpoints.c, core_tables.bodies

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [rollout.rollout_id, body.c.codec, body.c.body]
        has_name = and_(
            saved.rollout_id == rollout.rollout_id,
            saved.scope == bindparam("scope", type_=Text),
            saved.name == bindparam("name", type_=Text),
        )
        source = core_tables.rollouts.join(body, body.c.position == rollout.input_position)
        has_saved = select(saved.version).where(has_name).exists()
        return select(*columns).select_from(source).where(rollout.group_id == bindparam("group", type_=Text), has_saved)

    params = {"group": group_id, "scope": check_text(scope, "scope", LONGEST_ID), "name": name}
    return await session.fetch(compiled(session, "run_companions", build), params)


async def input_of(session: ReadSession, rollout_id: str) -> Any:
    """Return the input of a run; None if the run does not exist or its input was removed."""
    rollout, body = core_tables.rollouts.c, core_tables.bodies.c

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [body.codec, body.body]
        source = core_tables.rollouts.join(core_tables.bodies, body.position == rollout.input_position)
        return select(*columns).select_from(source).where(rollout.rollout_id == bindparam("rollout", type_=Text))

    rows = await session.fetch(compiled(session, "run_input", build), {"rollout": rollout_id})
    body_payload = payload(rows[0].codec, rows[0].body) if rows else None
    return None if body_payload is None else body_payload.get("input")


async def made_for(session: ReadSession, scope: str, name: str | None, limit: int, until: int) -> Sequence[NamedRow]:
    """Return the artifacts that any runs saved for a scope up to the position `until`, newest first.

    The columns are artifact_id, rollout_id, group_id, version, position, time (µs), attempt, scope, name, phase,
    media_type, and the position of the event that retracted the artifact, or null. With a negative limit, all artifacts
    are returned.
    """
    artifact, rollout, event = core_tables.artifacts.c, core_tables.rollouts, core_tables.events
    retraction = core_tables.events.alias("retraction")

    def build() -> Select[Any]:
        columns: list[ColumnElement[Any]] = [
            artifact.artifact_id,
            artifact.rollout_id,
            rollout.c.group_id,
            artifact.version,
        ]
        columns += [
            artifact.position,
            event.c.at,
            artifact.attempt,
            artifact.scope,
            artifact.name,
            artifact.phase,
            artifact.media_type,
        ]
        of_retraction = and_(
            retraction.c.stream == literal_column("'rollout/'", Text) + artifact.rollout_id,
            retraction.c.version == artifact.retracted,
        )
        source = (
            core_tables.artifacts.join(rollout, rollout.c.rollout_id == artifact.rollout_id)
            .join(event, event.c.position == artifact.position)
            .outerjoin(retraction, of_retraction)
        )
        terms = [
            artifact.scope == bindparam("scope", type_=Text),
            artifact.position <= bindparam("until", type_=BigInteger),
        ]
        if name is not None:
            terms.append(artifact.name == bindparam("name", type_=Text))
        statement = (
            select(*columns, retraction.c.position.label("retracted_position")).select_from(source).where(*terms)
        )
        statement = statement.order_by(artifact.position.desc())
        return statement if limit < 0 else statement.limit(bindparam("most", type_=BigInteger))

    params = {"scope": check_text(scope, "scope", LONGEST_ID), "until": until, "most": limit, "name": name}
    return await session.fetch(compiled(session, ("made_for", name is None, limit < 0), build), params)
