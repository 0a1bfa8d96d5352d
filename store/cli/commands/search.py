"""`rollbook search`: full-text search over the texts of rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import is_terminal, json_document, line, note
from store.cli.query_options import with_conditions
from store.cli.store_context import run_reading
from store.models.queries import RolloutQuery

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models.search import SearchHit, SearchPage

app = typer.Typer()

_NAMES: Final = {"call": "tool call", "result": "tool result"}


@app.command(rich_help_panel="Look")
@with_conditions("Search")
def search(
    words: Annotated[str, typer.Argument(metavar="QUERY", help="Words, phrases, prefixes and scopes.")],
    query: RolloutQuery,
    db: Db = DEFAULT_DB,
    regex: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Show only texts that match an expression of RE2."),
    ] = None,
    rollout: Annotated[
        str | None, typer.Option(metavar="ID", help="Search only this rollout, and show all matching texts.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=100, help="Show at most N.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue after a page of results.")] = None,
    json: AsJson = False,
) -> None:
    """Search inputs, messages, tool calls and results, reasoning, errors and notes."""

    async def find(store: Store) -> SearchPage:
        rollout_id = None if rollout is None else await lookup.rollout(store, rollout)
        return await store.log.search(
            words, regex=regex, rollouts=query, rollout_id=rollout_id, limit=limit, after=after
        )

    page = run_reading(db, find)
    if json:
        json_document(page.model_dump())
    else:
        _print(page)


def _print(page: SearchPage) -> None:
    for result in page.results:
        line(f"{result.rollout_id}  {result.status}")
        for hit in result.hits:
            name = f" {hit.name}" if hit.name else ""
            number = f"event {hit.number}" if hit.sequence_id is None else f"span {hit.sequence_id}"
            line(f"  {_NAMES.get(hit.scope, hit.scope)}{name} ({number}): {_excerpt(hit)}")
    if not page.results:
        note("nothing found")
    if page.events_behind:
        note(f"the index is {page.events_behind:,} events behind the log")
    if page.is_cut_off:
        note("the search stopped at its limit of time or texts; --after continues it")
    if page.next is not None:
        note(f"more: --after {page.next}")


def _excerpt(hit: SearchHit) -> str:
    """Return an excerpt in one line. On a terminal, the matches are bold."""
    bold, plain = ("\033[1m", "\033[0m") if is_terminal() else ("", "")
    text, last = "", 0
    for start, end in hit.marks:
        text += f"{_visible(hit.text[last:start])}{bold}{_visible(hit.text[start:end])}{plain}"
        last = end
    text += _visible(hit.text[last:])
    return f"{'' if hit.is_start else '… '}{text.strip()}{'' if hit.is_end else ' …'}"


def _visible(text: str) -> str:
    """Return a text in one line without control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)
