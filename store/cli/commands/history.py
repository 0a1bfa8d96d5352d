"""Commands `rollbook history` and `tail`: events of the log, with a sentence about each. Decision 90."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db, RolloutId
from store.cli.output.printing import is_terminal, json_document, json_line, line, note, printable
from store.cli.output.tables import Column, print_table
from store.cli.output.times import in_words, local, utc
from store.cli.store_context import run_reading
from store.narration.events import Narrator

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import HistoryEvent, LoggedEvent

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class _Row:
    event: HistoryEvent
    cause: str
    sentence: str


_HISTORY: Final[tuple[Column[_Row], ...]] = (
    Column("#", lambda row: str(row.event.number), right=True),
    Column("time", lambda row: utc(row.event.at), lambda row, _: local(row.event.at)),
    Column("type", lambda row: row.event.type),
    Column("actor", lambda row: row.event.actor or ""),
    Column("cause", lambda row: row.cause),
    Column("what", lambda row: row.sentence),
)
_LAST: Final = 10
"""The number of events with which `rollbook tail` starts by default."""
_PARTS: Final = (1_000, 50_000)
"""The numbers of events at the end of the log that are searched before the whole log is searched."""
_TAIL_TITLES: Final = ("position", "time", "stream", "type", "actor", "cause", "what")


@app.command(rich_help_panel="Look")
def history(*, rollout: RolloutId, db: Db = DEFAULT_DB, as_at: AsAt = None, json: AsJson = False) -> None:
    """Show the history of a rollout: every event with its number, time, type, actor and cause."""

    async def read(store: Store) -> list[HistoryEvent]:
        return await store.log.history(await lookup.rollout(store, rollout), as_at=as_at)

    events = run_reading(db, read)
    if as_at is not None:
        note(f"as of {in_words(as_at)}")
    if json:
        json_document([event.model_dump() for event in events])
        return
    narrator = Narrator(local)
    numbers = {event.position: event.number for event in events}
    print_table(_HISTORY, [_Row(event, _cause(event.cause, numbers), narrator.describe(event)) for event in events])


def _cause(position: int | None, numbers: dict[int, int]) -> str:
    if position is None:
        return ""
    return f"#{numbers[position]}" if position in numbers else f"@{position}"


@app.command(rich_help_panel="Look")
def tail(
    *,
    db: Db = DEFAULT_DB,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events, until Ctrl+C.")] = False,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Start after this event; --json shows the cursor of each event."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            "-n",
            metavar="N",
            min=0,
            help="Start with the last N events; 10 without --after.",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Start with the first event of the log.")] = False,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="Only events of this type, for example attempt.started; may be repeated."
        ),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only events of this rollout, given by its id or the start of its id."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print the last events of the log of the whole store, one event per line; with --follow, also new events.

    With --json, each line is a JSON document, and the output starts with the first event of the log.
    """
    if all_ and (after is not None or last is not None):
        raise typer.BadParameter("give --all, or --after or --last")
    # With --json, the output is for programs, which read the whole log by default.
    count = _LAST if last is None and after is None and not all_ and not json else last
    printer = _JsonLines() if json else _Lines()

    async def read(store: Store) -> None:
        rollout_id = None if rollout is None else await lookup.rollout(store, rollout)
        cursor = after
        if count is not None:
            cursor = await _print_last(store, printer, after, count, types, rollout_id)
        async for event in store.log.tail(cursor, follow=follow, types=types or None, rollout_id=rollout_id):
            printer.print(event)
            if follow:
                sys.stdout.flush()
        printer.finish()

    try:
        run_reading(db, read)
    except KeyboardInterrupt:
        if not follow:
            raise


async def _print_last(
    store: Store,
    printer: _Lines | _JsonLines,
    after: str | None,
    last: int,
    types: Sequence[str] | None,
    rollout: str | None,
) -> str | None:
    """Print the newest events after the cursor `after`, at most `last`, and return the cursor to continue from."""
    newest: deque[LoggedEvent] = deque(maxlen=max(last, 1))
    for start in await _starts(store, after, last):
        newest.clear()
        events: AsyncIterator[LoggedEvent] = store.log.tail(start, types=types or None, rollout_id=rollout)
        async for event in events:
            printer.pass_by(event)
            newest.append(event)
        if len(newest) >= max(last, 1):
            break
    for event in list(newest)[len(newest) - min(last, len(newest)) :]:
        printer.print(event)
    sys.stdout.flush()
    return newest[-1].cursor if newest else after


async def _starts(store: Store, after: str | None, last: int) -> list[str | None]:
    """Return the cursors from which to search the last events, in this order. A long log is read near its end first."""
    from store.sql.log import SQLLog

    if after is not None or not isinstance(store.log, SQLLog):
        return [after]
    near_end = [await store.log.before_end(count) for count in _PARTS if count >= last]
    return [*(cursor for cursor in near_end if cursor is not None), None]


class _JsonLines:
    """Printer of one JSON document per event."""

    def pass_by(self, event: LoggedEvent) -> None:
        """Do nothing: a JSON document does not depend on earlier events."""

    def print(self, event: LoggedEvent) -> None:
        json_line(event.model_dump())

    def finish(self) -> None:
        """Print nothing: every line contains its cursor."""


class _Lines:
    """Printer of one line per event. At the end, it prints the command that continues after the last event."""

    def __init__(self) -> None:
        self._narrator = Narrator(local)
        self._cursor: str | None = None
        self._is_terminal = is_terminal()
        self._is_plain = bool(os.environ.get("NO_COLOR"))

    def pass_by(self, event: LoggedEvent) -> None:
        """Remember the data of an event, even if it is not printed: sentences about later events use the data."""
        self._narrator.observe(event)

    def print(self, event: LoggedEvent) -> None:
        if self._cursor is None and not self._is_terminal:
            line("\t".join(_TAIL_TITLES))
        self._cursor = event.cursor
        sentence = printable(self._narrator.describe(event))
        if self._is_terminal:
            kind, _, name = event.stream.partition("/")
            subject = name if kind in {"rollout", "resources"} else event.stream
            stamp = f"{event.position:>7}  {local(event.at, date=False)}  "
            dim, plain = ("", "") if self._is_plain else ("\x1b[2m", "\x1b[0m")
            line(f"{dim}{stamp}{plain}{printable(subject):<15}  {dim}{event.type:<22}{plain}  {sentence}")
            return
        cause = "" if event.cause is None else f"@{event.cause}"
        cells = (str(event.position), utc(event.at), event.stream, event.type, event.actor or "", cause)
        line("\t".join((*map(printable, cells), sentence)))

    def finish(self) -> None:
        """Print the command that continues after the last printed event."""
        if self._cursor is not None:
            note(f"continue with: rollbook tail --after {self._cursor}")
