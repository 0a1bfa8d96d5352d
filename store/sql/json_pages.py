"""JSON of pages of rollouts and spans, made from rows of the database without models. Decision 36.

The database stores payload as JSON, which was validated when it was recorded. The stored JSON is inserted into the page
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import orjson

from store.db.dialect import NamedRow, ReadSession
from store.db.queries import filters, pages
from store.db.queries.bodies import payload, raw_json
from store.db.queries.filters import FilterQuery
from store.db.queries.rewards import AttemptRewards
from store.db.queries.scores import rewards_of_version
from store.journal import as_at as timeline
from store.journal.state_view import StateView
from store.models import RolloutConfig
from store.models.queries import RolloutQuery, SpanQuery
from store.sql.core import SQLCore
from store.sql.mapping import rollouts as rollout_mapping
from store.sql.mapping import spans as span_mapping
from store.sql.queries import rollout_reader
from store.wire.encoding import dumps

_SPAN_BODY: Final = b'{"attributes":'
_ROLLOUT_BODY: Final = b'{"input":'

# The body of a span is its stored payload. Nearly every body ends with the span's resource, its two contexts, and
# fields that tracers add. A body with other fields, or with a brace inside a text, does not match, and `span_of_page`
# converts it instead.
_WORD: Final = rb'"[^"\\{}]*+"'
_FLAT: Final = rb'\{(?:[^{}"]++|%b)*+\}' % _WORD
_CONTEXT: Final = (
    rb'\{"trace_id":%b,"span_id":%b,"is_remote":(?:true|false),"trace_state":%b(?:,"trace_flags":\d++)?\}'
    % (_WORD, _WORD, _FLAT)
)
_RESOURCE: Final = b'"resource":{"attributes":{'
_END: Final = re.compile(
    rb'%b(?:[^{}"]++|%b)*+\},"schema_url":%b\}(,"context":%b)?(,"parent":%b)?'
    rb'(?:,"kind":%b)?(?:,"instrumentation_scope":%b)?(?:,"flags":\d++)?\}'
    % (re.escape(_RESOURCE), _WORD, _WORD, _CONTEXT, _CONTEXT, _WORD, _FLAT)
).fullmatch


def spans(rows: Sequence[NamedRow]) -> bytes:
    """Return the JSON of spans, separated by commas, from rows of `pages.take_spans`."""
    return dumps([_span(row) for row in rows])[1:-1]


def _span(row: NamedRow) -> Any:
    body = _body(row.codec, row.body)
    tail = body.rfind(_RESOURCE)
    end = _END(body, tail) if tail > 0 and body.startswith(_SPAN_BODY) else None
    if end is None:
        return span_mapping.span_of_page(row)
    fields: dict[str, Any] = {
        "rollout_id": row.rollout_id,
        "attempt_id": row.attempt_id,
        "sequence_id": row.sequence_id,
        "trace_id": row.trace_id,
        "span_id": row.span_id,
        "parent_id": row.parent_id,
        "name": row.name,
        "status": {"status_code": row.status_code, "description": row.status_message},
        "start_time": row.start_time,
        "end_time": row.end_time,
    }
    if end[1] is None:
        fields["context"] = None
    if end[2] is None:
        fields["parent"] = None
    # This fragment is the rest of the body, so it contains the attributes and all fields after them.
    fields["attributes"] = orjson.Fragment(body[len(_SPAN_BODY) : -1])
    return fields


def rollouts(rows: Sequence[NamedRow], rewards: Mapping[tuple[str, str], AttemptRewards]) -> bytes:
    """Return the JSON of rollouts, separated by commas, from rows of `pages.take_rollouts` and rewards of attempts."""
    return dumps([_rollout(row, rewards) for row in rows])[1:-1]


def _rollout(row: NamedRow, rewards: Mapping[tuple[str, str], AttemptRewards]) -> dict[str, Any]:
    attempt_rewards = rewards.get((row.rollout_id, row.attempt_attempt_id))
    reward, by_name = (None, {}) if attempt_rewards is None else attempt_rewards
    fields: dict[str, Any] = {
        "rollout_id": row.rollout_id,
        "start_time": row.start_at / 1_000_000,
        "end_time": None if row.end_at is None else row.end_at / 1_000_000,
        "mode": row.mode,
        "resources_id": row.resources_id,
        "status": row.status,
        "config": _config(row.config),
        "reward": reward,
        "rewards": by_name,
    }
    if row.attempt_attempt_id is not None:
        fields["attempt"] = _attempt(row) | {"reward": reward, "rewards": by_name}
    body = _body(row.input_codec, row.input_body)
    # A body that stores both the input and the metadata has no other fields, so its text is used unchanged.
    if row.is_one_body and body.startswith(_ROLLOUT_BODY):
        fields["input"] = orjson.Fragment(body[len(_ROLLOUT_BODY) : -1])
        return fields
    input_body = payload(row.input_codec, row.input_body)
    metadata_body = input_body if row.is_one_body else payload(row.metadata_codec, row.metadata_body)
    fields["input"] = None if input_body is None else input_body.get("input")
    fields["metadata"] = rollout_mapping.rollout_metadata(input_body, metadata_body)
    return fields


def _attempt(row: NamedRow) -> dict[str, Any]:
    metadata = payload(row.attempt_metadata_codec, row.attempt_metadata_body)
    return {
        "rollout_id": row.rollout_id,
        "attempt_id": row.attempt_attempt_id,
        "sequence_id": row.attempt_sequence_id,
        "start_time": row.attempt_start_at / 1_000_000,
        "end_time": None if row.attempt_end_at is None else row.attempt_end_at / 1_000_000,
        "status": row.attempt_status,
        "worker_id": row.attempt_worker_id,
        "last_heartbeat_time": row.attempt_last_heartbeat_time,
        "metadata": None if metadata is None else metadata.get("metadata"),
    }


def _body(codec: int | None, stored: bytes | None) -> bytes:
    return b"" if codec is None or stored is None else raw_json(codec, stored)


@lru_cache(maxsize=1024)
def _config(stored: str) -> orjson.Fragment:
    """Return a config with all its fields. Results are cached, because many rollouts have equal configs."""
    return orjson.Fragment(dumps(RolloutConfig.model_validate_json(stored)))


Write = Callable[[bytes], object]

# Payload may be long, so few rows are in memory at a time.
_AT_ONCE = 128


class JSONPages:
    """Writer of long pages of a SQL store as JSON, with few rows in memory at a time.

    Args:
        core: the core of the store.
    """

    def __init__(self, core: SQLCore) -> None:
        self.core = core

    async def write_rollouts(self, write: Write, query: RolloutQuery) -> int:
        """Write the JSON of each rollout that a query matches; return the number of matches before paging.

        Args:
            write: called in order, each time with one or several rollouts separated by commas.
            query: the query, as for `find_rollouts`.
        """
        filter_query = filters.of(query)

        async def write_view(view: StateView) -> int:
            if view.until is None:
                return await pages.take_rollouts(
                    view.session, filter_query, partial(take, view.session), batch=_AT_ONCE
                )
            # Rows of the past are computed from the log in any order, so all rows are collected before the first is
            # written. The number of rows of the past is limited.
            make = rollout_reader(self.core, filter_query)
            page = await make.at(view).rollouts(filter_query, make)
            await make.read(view.session)
            for rollout in page.items:
                write(dumps(rollout))
            return page.total

        async def take(session: ReadSession, rows: Sequence[NamedRow]) -> None:
            version = filter_query.reward_version
            ids = [row.rollout_id for row in rows if version is not None or row.last_reward is not None]
            rewards = await rewards_of_version(session, ids, version) if ids else {}
            if rows:
                write(rollouts(rows, rewards))

        return await self.core.view(write_view, query.as_at, snapshot=self._is_cut_up(filter_query))

    async def write_spans(self, write: Write, query: SpanQuery) -> int:
        """Write the JSON of each span that a query matches; return the number of matches before paging.

        Args:
            write: called in order, each time with one or several spans separated by commas.
            query: the query, as for `find_spans`.
        """
        filter_query = filters.of(query)

        take = _written(spans, write)
        several, attempt_id = query.several, query.attempt_id
        rollout_id = query.rollout_id if several is None else several

        async def write_view(view: StateView) -> int:
            if view.until is None:
                return await pages.take_spans(view.session, rollout_id, attempt_id, filter_query, take, batch=_AT_ONCE)
            page = await timeline.spans(
                view.session, rollout_id, attempt_id, filter_query, view.until, lambda row: take([row]), batch=_AT_ONCE
            )
            return page.total

        return await self.core.view(
            write_view, query.as_at, (query.rollout_id, query.at), snapshot=self._is_cut_up(filter_query)
        )

    async def state(self) -> tuple[Hashable, Hashable] | None:
        """Return the identity of the database and a mark of its state. Every commit of any process changes the mark.

        Return None if the database has no such mark. Two pages of one query are equal if they were read in the same
        state. As the query does, this method first ends overdue attempts if a sweep for them is due.
        """
        self.core.check()
        await self.core.watchdog.sweep_if_due()
        return self.core.dialect.state()

    def _is_cut_up(self, filter_query: FilterQuery) -> bool:
        """Return whether the page is read in several batches that need a transaction to see the same state."""
        return self.core.dialect.batches_need_snapshot and not 0 <= filter_query.limit <= _AT_ONCE


def _written(text: Callable[[Sequence[NamedRow]], bytes], write: Write) -> Callable[[Sequence[NamedRow]], None]:
    def take(rows: Sequence[NamedRow]) -> None:
        if rows:
            write(text(rows))

    return take
