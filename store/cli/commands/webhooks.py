"""`rollbook webhooks`: signed messages about conditions of a store, which servers send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note
from store.cli.output.tables import Column, print_table
from store.cli.output.times import utc
from store.runtime.urls import scheme_of

if TYPE_CHECKING:
    from store.client.webhooks import HTTPWebhooks
    from store.webhooks.records import Webhooks

T = TypeVar("T")
Fields = dict[str, Any]

app = typer.Typer()
webhooks = typer.Typer(
    name="webhooks",
    help="Manage webhooks: signed messages about a store, which its server sends.",
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

    conditions = parse_conditions(on or [])

    async def add(webhooks: Webhooks) -> Fields:
        from store.webhooks.management import add_webhook

        webhook = await add_webhook(webhooks, url, conditions, allow_private=allow_private)
        return {**webhook.public_fields(), "secret": webhook.secret}

    webhook = _run(db, add, lambda server: server.add(url, conditions))
    if json:
        json_document(webhook)
    else:
        line(webhook["secret"])
    note(
        f"Servers of this database check the webhook {webhook['id']}: they begin within 30 seconds, or within ten"
        " minutes in a partition that none of their clients uses."
    )
    note("The secret is shown only once. The database stores it, because each signature needs it.")


@webhooks.command("ls")
def webhooks_list(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """List the webhooks of a store, without their secrets."""

    async def read(webhooks: Webhooks) -> list[Fields]:
        return [webhook.public_fields() for webhook in await webhooks.all()]

    rows = _run(db, read, lambda server: server.all(), read_only=True)
    if json:
        json_document(rows)
    else:
        print_table(_WEBHOOKS, rows)


@webhooks.command("rm")
def webhooks_remove(webhook_id: WebhookId, db: Db = DEFAULT_DB) -> None:
    """Remove a webhook with its messages, also those that wait for a retry."""

    async def remove(webhooks: Webhooks) -> Fields:
        return (await webhooks.remove(webhook_id)).public_fields()

    _run(db, remove, lambda server: server.remove(webhook_id))
    line(f"{webhook_id} removed")


@webhooks.command("test")
def webhooks_test(
    webhook_id: WebhookId, db: Db = DEFAULT_DB, allow_private: AllowPrivate = False, json: AsJson = False
) -> None:
    """Send a message of the type webhook.test once, from this machine or from the server, and print the result."""

    async def test(webhooks: Webhooks) -> Fields:
        from store.webhooks.management import test_webhook

        return (await test_webhook(webhooks, webhook_id, allow_private=allow_private)).public_fields()

    delivery = _run(db, test, lambda server: server.test(webhook_id))
    if json:
        json_document(delivery)
    else:
        line(f"{delivery['status']} {delivery['error'] or delivery['response_status']}")
    if delivery["error"] is not None:
        raise typer.Exit(1)


@webhooks.command("deliveries")
def webhooks_deliveries(
    db: Db = DEFAULT_DB,
    webhook_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only messages of this webhook.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="Show at most N.")] = 50,
    json: AsJson = False,
) -> None:
    """List the newest messages with their attempts and results."""

    async def read(webhooks: Webhooks) -> list[Fields]:
        return [message.public_fields() for message in await webhooks.deliveries(limit, webhook_id)]

    rows = _run(db, read, lambda server: server.deliveries(limit, webhook_id), read_only=True)
    if json:
        json_document(rows)
    else:
        print_table(_DELIVERIES, rows)


def _run(
    db: str,
    in_database: Callable[[Webhooks], Awaitable[T]],
    at_server: Callable[[HTTPWebhooks], Awaitable[T]],
    *,
    read_only: bool = False,
) -> T:
    async def run() -> T:
        if scheme_of(db) in {"http", "https"}:
            from store.client.webhooks import HTTPWebhooks

            async with HTTPWebhooks.opened(db) as server:
                return await at_server(server)
        from store.webhooks.records import Webhooks

        async with Webhooks.opened(db, read_only=read_only) as webhooks:
            return await in_database(webhooks)

    return asyncio.run(run())


_WEBHOOKS: Final[list[Column[Fields]]] = [
    Column("id", lambda webhook: webhook["id"]),
    Column("url", lambda webhook: webhook["url"], shrinks=True),
    Column("conditions", lambda webhook: ", ".join(webhook["conditions"]), shrinks=True),
    Column("created", lambda webhook: utc(webhook["created_at"])),
]
_DELIVERIES: Final[list[Column[Fields]]] = [
    Column("created", lambda message: utc(message["created_at"])),
    Column("webhook", lambda message: message["webhook_id"]),
    Column("type", lambda message: message["type"]),
    Column("status", lambda message: message["status"]),
    Column("attempts", lambda message: str(message["attempts"])),
    Column("next", lambda message: utc(message["next_at"])),
    Column("error", lambda message: message["error"] or "", shrinks=True),
]
