"""Stored rows and payload become the JSON text of the API, with no model in between.

Payload lies in the database as JSON that was validated when it entered; it is set into the text as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from store import reads
from store.db.bodies import raw_json
from store.models import RolloutConfig
from store.wire.encoding import dumps

Row = Sequence[Any]

_SPAN: Final = (
    "rollout_id",
    "attempt_id",
    "span_id",
    "sequence_id",
    "trace_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
)
# What a span's body always begins with, and what stands in it only for some spans.
_SPAN_BODY: Final = b'{"attributes":'
_SOMETIMES: Final = (("status", b'"status":'), ("context", b'"context":'), ("parent", b'"parent":'))
_ROLLOUT_BODY: Final = b'{"input":'


def span_of_page(row: Row) -> bytes:
    """Return the span of a row as `pages.spans` reads it: the row of the table, codec and bytes."""
    body = _body(row[-2], row[-1])
    if not body.startswith(_SPAN_BODY):
        return dumps(reads.span_of_page(row))
    fields: dict[str, Any] = dict(zip(_SPAN, row, strict=False))
    absent = {name for name, token in _SOMETIMES if token not in body}
    if len(absent) < len(_SOMETIMES):
        # The token may also stand somewhere inside.
        present = orjson.loads(body).keys()
        absent = {name for name, _ in _SOMETIMES if name not in present}
    for name in absent:
        fields[name] = {"status_code": row[9], "description": row[10]} if name == "status" else None
    return _joined(fields, body)


def rollout_of_page(row: Row) -> bytes:
    """Return the rollout of a row as `pages.rollouts` reads it, with its latest attempt if it has one."""
    body = _body(row[-6], row[-5])
    input_position, metadata_position = reads.positions_of_rollout(row)
    # A body that is both the input's and the metadata's holds these two and nothing else.
    if input_position != metadata_position or not body.startswith(_ROLLOUT_BODY):
        return dumps(reads.rollout_of_page(row))
    fields = reads.rollout_columns(row)
    del fields["input"]
    config = fields["config"]
    fields["config"] = orjson.Fragment(_config(config if isinstance(config, str) else dumps(config).decode()))
    attempt = reads.attempt_beside(row)
    if attempt is not None:
        fields["attempt"] = attempt
    return _joined(fields, body)


def _body(codec: int | None, stored: bytes | None) -> bytes:
    return b"" if codec is None or stored is None else raw_json(codec, stored)


def _joined(fields: dict[str, Any], body: bytes) -> bytes:
    return b"%b,%b" % (dumps(fields)[:-1], body[1:])


@lru_cache(maxsize=1024)
def _config(stored: str) -> bytes:
    """Return a config with all its fields; there are few in a run, and many rollouts."""
    return dumps(RolloutConfig.model_validate_json(stored))
