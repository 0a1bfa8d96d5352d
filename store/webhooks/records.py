"""Webhooks of a partition and their messages, as rows of the database. Decision 119."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlencode

import orjson
from sqlalchemy import Select, func, select

from store.db.dialect import Changes, Dialect, ReadSession, WriteSession, dialect_for
from store.db.queries.expressions import big
from store.db.schema.sealed import refuse_sealed
from store.db.tables.core import webhook_deliveries, webhooks
from store.db.url import parse
from store.errors import Conflict, Invalid, NotFound
from store.runtime.clock import MICROSECONDS, system_clock, to_seconds
from store.webhooks.conditions import ConditionCheck, ConditionKind, kind_of

MAX_WEBHOOKS: Final = 20
"""The maximum number of webhooks of a partition. A server checks the conditions of each."""
_MOST_DELIVERIES: Final = 500
"""The number of messages of a webhook that are stored; older ones are deleted, waiting ones too."""
_CLAIMED_AT_ONCE: Final = 200

Status = Literal["waiting", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. The fields are the columns of its table, in their order. Times are µs since the epoch."""

    webhook_id: str
    url: str
    secret: str = field(repr=False)
    conditions: str
    """The settings of its conditions by name, as JSON."""
    states: str
    """The states of its conditions by name, as JSON."""
    created_at: int

    def public_fields(self) -> dict[str, Any]:
        """Return the webhook as JSON without its secret. Times are seconds since the epoch."""
        conditions, states = orjson.loads(self.conditions), orjson.loads(self.states)
        levels = {
            name: state for name, state in states.items() if (kind := kind_of(name)) is not None and kind.is_level
        }
        return {
            "id": self.webhook_id,
            "url": self.url,
            "conditions": conditions,
            "holds_since": {name: to_seconds(state) for name, state in levels.items()},
            "created_at": to_seconds(self.created_at),
        }


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message of a webhook. The fields are the columns of its table, in their order. Times are µs since the epoch."""

    delivery_id: str
    """The id of the message, which is equal in all attempts."""
    webhook_id: str
    type: str
    body: str
    created_at: int
    status: Status = "waiting"
    attempts: int = 0
    next_at: int | None = None
    sender: str | None = None
    attempted_at: int | None = None
    response_status: int | None = None
    error: str | None = None

    def public_fields(self) -> dict[str, Any]:
        """Return the message as JSON. Times are seconds since the epoch."""
        times = {"created_at": self.created_at, "attempted_at": self.attempted_at, "next_at": self.next_at}
        return {
            "id": self.delivery_id,
            "webhook_id": self.webhook_id,
            "type": self.type,
            "status": self.status,
            "attempts": self.attempts,
            **{name: None if micros is None else to_seconds(micros) for name, micros in times.items()},
            "response_status": self.response_status,
            "error": self.error,
            "body": orjson.loads(self.body),
        }


async def all_webhooks(session: ReadSession) -> list[Webhook]:
    """Return all webhooks of a partition, the oldest first."""
    return [Webhook(**row._asdict()) for row in await session.fetch(session.dialect.prepared(_WEBHOOKS), {})]


async def newest_deliveries(session: ReadSession, limit: int, webhook_id: str | None = None) -> list[Delivery]:
    """Return the newest messages of a webhook, or of all webhooks, the newest first."""
    message = webhook_deliveries.c
    statement = select(webhook_deliveries).order_by(message.created_at.desc(), message.delivery_id).limit(big(limit))
    if webhook_id is not None:
        statement = statement.where(message.webhook_id == webhook_id)
    return [Delivery(**row._asdict()) for row in await session.fetch(session.dialect.sql(statement), {})]


class Webhooks:
    """The webhooks of one partition."""

    def __init__(self, dialect: Dialect, store_id: str) -> None:
        self._dialect = dialect
        self._store_id = store_id
        self._sender = secrets.token_hex(8)

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, *, read_only: bool = False, clock: Any = None) -> AsyncGenerator[Self]:
        """Open the webhooks of an existing partition during the block.

        Raises:
            Invalid: the URL is not the URL of a database that other processes can open.
            StoreError: the database cannot be opened, or is a backup and `read_only` is false.
        """
        parsed = parse(url)
        if parsed.scheme in {"memory", "http", "https"}:
            raise Invalid(
                "--db", "webhooks are stored in the database; give its URL: sqlite:///run.db or postgresql://…"
            )
        if not read_only:
            await refuse_sealed(parsed)
        dialect = dialect_for(parsed)(parsed, clock, read_only=read_only)
        store_id = await dialect.open(create=False)
        try:
            yield cls(dialect, store_id)
        finally:
            await dialect.close()

    @property
    def now(self) -> int:
        """The time of the database's clock in µs since the epoch."""
        return (self._dialect.clock or system_clock)()

    async def all(self) -> list[Webhook]:
        """Return all webhooks, the oldest first."""
        async with self._dialect.read() as session:
            return await all_webhooks(session)

    async def deliveries(self, limit: int, webhook_id: str | None = None) -> list[Delivery]:
        """Return the newest messages of a webhook, or of all webhooks, the newest first."""
        async with self._dialect.read() as session:
            return await newest_deliveries(session, limit, webhook_id)

    async def add(self, url: str, secret: str, conditions: Mapping[str, Mapping[str, float]]) -> Webhook:
        """Add a webhook. The caller has checked its address and conditions.

        Raises:
            Conflict: the partition has the maximum number of webhooks.
        """
        async with self._writing() as (session, now):
            if len(await all_webhooks(session)) >= MAX_WEBHOOKS:
                raise Conflict(f"the partition has {MAX_WEBHOOKS} webhooks", "remove one: rollbook webhooks rm ID")
            webhook = Webhook(secrets.token_hex(5), url, secret, orjson.dumps(conditions).decode(), "{}", now)
            await session.write(Changes(inserts={webhooks: [astuple(webhook)]}, upserts={}, deletes={}))
        return webhook

    async def remove(self, webhook_id: str) -> Webhook:
        """Remove and return a webhook, with its messages, delivered or not.

        Raises:
            NotFound: there is no webhook with this id.
        """
        async with self._writing() as (session, _):
            webhook = await self._one(session, webhook_id)
            ids = [(row.delivery_id,) for row in await self._messages(session, webhook_id)]
            deletes: dict[Any, list[Any]] = {webhooks: [(webhook_id,)]} | ({webhook_deliveries: ids} if ids else {})
            await session.write(Changes(inserts={}, upserts={}, deletes=deletes))
        return webhook

    async def add_test(self, webhook_id: str, lease_seconds: float) -> tuple[Webhook, Delivery]:
        """Claim a message of the type `webhook.test`, which the caller sends, and return it with its webhook.

        Raises:
            NotFound: there is no webhook with this id.
        """
        async with self._writing() as (session, now):
            webhook = await self._one(session, webhook_id)
            message = self._message(webhook, "webhook.test", "", {}, now, None)
            message = self._claimed(message, now, lease_seconds)
            await self._insert(session, webhook, [message])
        return webhook, message

    async def check(self, base_url: str) -> int:
        """Check the conditions of all webhooks, add messages, and return their number.

        If another process has stored other states since the read, nothing is added, so a message is added once.

        Args:
            base_url: the URL of the partition at the server, for links to pages.
        """
        count = 0
        for webhook in await self.all():
            before: dict[str, int] = orjson.loads(webhook.states)
            states: dict[str, int] = {}
            added: list[tuple[ConditionKind, dict[str, Any]]] = []
            for name, settings in orjson.loads(webhook.conditions).items():
                # A newer version may have stored other conditions.
                if (kind := kind_of(name)) is None:
                    continue
                # An older version may have stored fewer settings.
                present = {**kind.defaults, **settings}
                check = ConditionCheck(name.partition("/")[2], present, before.get(name), webhook.created_at, self.now)
                async with self._dialect.read() as session:
                    state, messages = await kind.read(session, check)
                if state is not None:
                    states[name] = state
                added += [(kind, data) for data in messages]
            if states == before:
                continue
            async with self._writing() as (session, now):
                stored = await session.fetch(self._dialect.sql(_webhook(webhook.webhook_id)), {})
                if not stored or stored[0].states != webhook.states:
                    continue
                changed = replace(webhook, states=orjson.dumps(states).decode())
                await session.write(Changes(inserts={}, upserts={webhooks: [astuple(changed)]}, deletes={}))
                messages = [
                    self._message(webhook, kind.type, kind.page, data, now + number, base_url)
                    for number, (kind, data) in enumerate(added)
                ]
                await self._insert(session, webhook, messages)
            count += len(added)
        return count

    async def claim(self, *, lease_seconds: float, busy: Collection[str] = ()) -> list[tuple[Webhook, Delivery]]:
        """Claim messages that are due, at most one of each webhook, and return them with their webhooks.

        A claimed message is due again after the lease, so the message of a killed process is sent again.

        Args:
            lease_seconds: the length of the lease.
            busy: the ids of webhooks to which the caller sends already.
        """
        due_at = await self.next_at(busy)
        if due_at is None or due_at > self.now:
            return []
        async with self._writing() as (session, now):
            by_id = {webhook.webhook_id: webhook for webhook in await all_webhooks(session)}
            statement = _DUE.where(
                webhook_deliveries.c.next_at <= big(now), *(webhook_deliveries.c.webhook_id != name for name in busy)
            )
            claimed: dict[str, Delivery] = {}
            for row in await session.fetch(self._dialect.sql(statement.limit(big(_CLAIMED_AT_ONCE))), {}):
                if row.webhook_id in by_id:
                    claimed.setdefault(row.webhook_id, self._claimed(Delivery(**row._asdict()), now, lease_seconds))
            if claimed:
                rows: list[Any] = list(map(astuple, claimed.values()))
                await session.write(Changes(inserts={}, upserts={webhook_deliveries: rows}, deletes={}))
        return [(by_id[name], message) for name, message in claimed.items()]

    async def next_at(self, busy: Collection[str] = ()) -> int | None:
        """Return the time at which the next message is due; None if no message waits."""
        message = webhook_deliveries.c
        statement = select(func.min(message.next_at).label("at")).where(
            message.status == "waiting", *(message.webhook_id != name for name in busy)
        )
        async with self._dialect.read() as session:
            return (await session.fetch(self._dialect.sql(statement), {}))[0].at

    async def record(
        self, message: Delivery, *, response_status: int | None, error: str | None, retry_seconds: float | None
    ) -> Delivery | None:
        """Store the result of an attempt, and return the message; return None if its claim has ended.

        Args:
            message: the message as it was claimed.
            response_status: the status of the response; None if there was none.
            error: the reason why the attempt failed; None if the message was delivered.
            retry_seconds: the time until the next attempt; None if there is none.
        """
        async with self._writing() as (session, now):
            statement = select(webhook_deliveries).where(webhook_deliveries.c.delivery_id == message.delivery_id)
            rows = await session.fetch(self._dialect.sql(statement), {})
            if not rows or (rows[0].sender, rows[0].attempts) != (self._sender, message.attempts):
                return None
            has_next = error is not None and retry_seconds is not None
            result = replace(
                message,
                status="delivered" if error is None else "waiting" if has_next else "failed",
                next_at=now + round((retry_seconds or 0.0) * MICROSECONDS) if has_next else None,
                sender=None,
                response_status=response_status,
                error=error,
            )
            await session.write(Changes(inserts={}, upserts={webhook_deliveries: [astuple(result)]}, deletes={}))
        return result

    def _claimed(self, message: Delivery, now: int, lease_seconds: float) -> Delivery:
        until = now + round(lease_seconds * MICROSECONDS)
        return replace(message, attempts=message.attempts + 1, next_at=until, sender=self._sender, attempted_at=now)

    def _message(
        self, webhook: Webhook, kind: str, page: str, data: dict[str, Any], now: int, base_url: str | None
    ) -> Delivery:
        if "rollout_id" in data:
            page = f"runs/{quote(data['rollout_id'], safe='')}"
        if "scanner" in data:
            page = f"{page}?{urlencode({'scanner': data['scanner']})}"
        body = {
            "type": kind,
            "timestamp": datetime.fromtimestamp(to_seconds(now), UTC).isoformat(),
            "store": self._store_id,
            "partition": self._dialect.url.partition,
            "url": None if base_url is None else f"{base_url}/ui/{page}",
            "data": data,
        }
        return Delivery(
            f"msg_{secrets.token_hex(12)}", webhook.webhook_id, kind, orjson.dumps(body).decode(), now, next_at=now
        )

    async def _insert(self, session: WriteSession, webhook: Webhook, messages: list[Delivery]) -> None:
        if not messages:
            return
        rows: list[Any] = list(map(astuple, messages))
        stored = await self._messages(session, webhook.webhook_id)
        surplus = [(row.delivery_id,) for row in stored[max(_MOST_DELIVERIES - len(rows), 0) :]]
        deletes: dict[Any, list[Any]] = {webhook_deliveries: surplus} if surplus else {}
        await session.write(Changes(inserts={webhook_deliveries: rows}, upserts={}, deletes=deletes))

    async def _messages(self, session: WriteSession, webhook_id: str) -> list[Any]:
        """Return the ids of the messages of a webhook, the newest first."""
        message = webhook_deliveries.c
        statement = select(message.delivery_id).where(message.webhook_id == webhook_id)
        return list(await session.fetch(self._dialect.sql(statement.order_by(message.created_at.desc())), {}))

    async def _one(self, session: WriteSession, webhook_id: str) -> Webhook:
        rows = await session.fetch(self._dialect.sql(_webhook(webhook_id)), {})
        if not rows:
            raise NotFound("webhook", webhook_id, f"there is no webhook {webhook_id!r}; see `rollbook webhooks ls`")
        return Webhook(**rows[0]._asdict())

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[tuple[WriteSession, int]]:
        """Yield a session in a transaction with the write lock, and the time; commit at the end of the block."""
        session = await self._dialect.writer()
        try:
            tail = await session.begin()
            yield session, tail.now
            await session.commit()
        finally:
            # This rolls back an unfinished transaction.
            await session.close()


_WEBHOOKS: Final = select(webhooks).order_by(webhooks.c.created_at, webhooks.c.webhook_id)
_DUE: Final = (
    select(webhook_deliveries).where(webhook_deliveries.c.status == "waiting").order_by(webhook_deliveries.c.next_at)
)


def _webhook(webhook_id: str) -> Select[Any]:
    statement: Any = select(webhooks).where(webhooks.c.webhook_id == webhook_id)
    return statement
