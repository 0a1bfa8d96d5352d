"""`rollbook webhooks`: signed messages about conditions of a store, which servers send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import orjson
import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note
from store.cli.output.tables import Column, print_table
from store.cli.output.times import utc
from store.runtime.clock import to_seconds

if TYPE_CHECKING:
    from store.webhooks.records import Delivery, Webhook, Webhooks

T = TypeVar("T")

app = typer.Typer()
webhooks = typer.Typer(
    name="webhooks",
    help="Manage the webhooks of a store, which a server sends.",
    rich_help_panel="Serve",
    no_args_is_help=True,
)
app.add_typer(webhooks)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The id that `webhooks ls` shows.")]
AllowPrivate = Annotated[
    bool,
    typer.Option("--allow-private", help="Permit an address of this machine or network; the server must permit it."),
]


@webhooks.command("add")
def webhooks_add(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of the receiver.")],
    db: Db = DEFAULT_DB,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION[:NAME=N,…]",
            help="A condition: stuck_queue, failure_rate, reward_drop, run_ended, training_idle or"
            " scanner_rate/SCANNER; may be repeated; the default is all that need no scanner.",
        ),
    ] = None,
    allow_private: AllowPrivate = False,
    json: AsJson = False,
) -> None:
    """Add a webhook and print its secret once; receivers verify signatures with the secret."""
    from store.webhooks.conditions import parse_conditions
    from store.webhooks.management import add_webhook

    conditions = parse_conditions(on or [])
    webhook = _run(db, lambda webhooks: add_webhook(webhooks, url, conditions, allow_private=allow_private))
    if json:
        json_document({**webhook.public_fields(), "secret": webhook.secret})
    else:
        line(webhook.secret)
    note(
        f"Servers of this database check the webhook {webhook.webhook_id}: they begin within 30 seconds, or within ten"
        " minutes in a partition that none of their clients uses."
    )
    note("The secret is shown only once. The database stores it, because each signature needs it.")


@webhooks.command("ls")
def webhooks_list(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """List the webhooks of a store, without their secrets."""
    rows = _run(db, lambda webhooks: webhooks.all(), read_only=True)
    if json:
        json_document([webhook.public_fields() for webhook in rows])
    else:
        print_table(_WEBHOOKS, rows)


@webhooks.command("rm")
def webhooks_remove(webhook_id: WebhookId, db: Db = DEFAULT_DB) -> None:
    """Remove a webhook with its messages, also those that wait for a retry."""
    _run(db, lambda webhooks: webhooks.remove(webhook_id))
    line(f"{webhook_id} removed")


@webhooks.command("test")
def webhooks_test(
    webhook_id: WebhookId, db: Db = DEFAULT_DB, allow_private: AllowPrivate = False, json: AsJson = False
) -> None:
    """Send a message of the type webhook.test from this machine, once, and print the result."""
    from store.webhooks.management import test_webhook

    delivery = _run(db, lambda webhooks: test_webhook(webhooks, webhook_id, allow_private=allow_private))
    if json:
        json_document(delivery.public_fields())
    else:
        line(f"{delivery.status} {delivery.error or delivery.response_status}")
    if delivery.error is not None:
        raise typer.Exit(1)


@webhooks.command("deliveries")
def webhooks_deliveries(
    db: Db = DEFAULT_DB,
    webhook_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only messages of this webhook.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many.")] = 50,
    json: AsJson = False,
) -> None:
    """List the newest messages with their attempts and results."""
    rows = _run(db, lambda webhooks: webhooks.deliveries(limit, webhook_id), read_only=True)
    if json:
        json_document([delivery.public_fields() for delivery in rows])
    else:
        print_table(_DELIVERIES, rows)


def _run(db: str, work: Callable[[Webhooks], Awaitable[T]], *, read_only: bool = False) -> T:
    from store.webhooks.records import Webhooks

    async def run() -> T:
        async with Webhooks.opened(db, read_only=read_only) as webhooks:
            return await work(webhooks)

    return asyncio.run(run())


_WEBHOOKS: Final[list[Column[Webhook]]] = [
    Column("id", lambda webhook: webhook.webhook_id),
    Column("url", lambda webhook: webhook.url, shrinks=True),
    Column("conditions", lambda webhook: ", ".join(orjson.loads(webhook.conditions)), shrinks=True),
    Column("created", lambda webhook: utc(to_seconds(webhook.created_at))),
]
_DELIVERIES: Final[list[Column[Delivery]]] = [
    Column("created", lambda delivery: utc(to_seconds(delivery.created_at))),
    Column("webhook", lambda delivery: delivery.webhook_id),
    Column("type", lambda delivery: delivery.type),
    Column("status", lambda delivery: delivery.status),
    Column("attempts", lambda delivery: str(delivery.attempts)),
    Column("next", lambda delivery: utc(None if delivery.next_at is None else to_seconds(delivery.next_at))),
    Column("error", lambda delivery: delivery.error or "", shrinks=True),
]
