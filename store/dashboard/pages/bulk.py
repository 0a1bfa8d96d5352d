"""Actions on several rollouts: a preview, the change with one event for each rollout, and an export. Decision 115."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, get_args

from store.dashboard.page import Done, File, PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.rollout_filters import RolloutFilters, chips, read_filters
from store.db.dialect import ReadSession
from store.db.queries.annotations import labels_in_use
from store.db.queries.input_starts import input_titles
from store.db.queries.list_details import dimensions_of, metadata_of
from store.db.queries.rollout_list import RolloutRow, rollout_page
from store.domain.rollout import TERMINAL
from store.errors import Conflict, Invalid, StoreError
from store.runtime.clock import MICROSECONDS
from store.semconv import PRIMARY

pages = Pages()

Action = Literal["label", "retry", "cancel", "export"]
MOST_ROLLOUTS: Final = 5_000
"""The maximum number of rollouts of one action."""
_LISTED: Final = 20
_AT_ONCE: Final = 100
_SUGGESTED: Final = 50
_TITLE_CHARACTERS: Final = 120
_OWN_PARAMETERS: Final = frozenset({"action", "expected", "add", "remove", "note", "upto"})
"""The parameters that do not select rollouts."""
_FIELDS: Final = ("rollout_id", "status", "mode", "step", "group_id", "worker_id", "resources_id", "resources_version")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@pages.get("/ui/bulk")
async def preview(request: PageRequest) -> PageContent:
    """Show which rollouts an action would change. The rollouts are those of the list with equal parameters."""
    action = request.among("action", get_args(Action), "export")
    filters = _filters(request)
    position = filters.query.upto or await request.store.core.position()
    rows = await request.store.core.look(partial(_selected, filters=filters, upto=position), snapshot=True)
    changing = [row for row in rows if _applies(action, row)]
    values = {
        "action": action,
        "selected": len(rows),
        "changing": len(changing),
        "unchanged": Counter(row.status for row in rows if not _applies(action, row)),
        "by_status": Counter(row.status for row in changing),
        "rollouts": changing[:_LISTED],
        "position": position,
    }
    plain = replace(
        request, params={name: request.several(name) for name in request.params if name not in _OWN_PARAMETERS}
    )
    ids = [row.rollout_id for row in changing[:_LISTED]]
    hidden = {
        "params": [(name, value) for name in plain.params for value in plain.several(name)],
        "chips": chips(plain),
        "titles": await request.store.core.look(partial(input_titles, rollout_ids=ids, characters=_TITLE_CHARACTERS)),
        "label_choices": await request.store.core.look(partial(labels_in_use, limit=_SUGGESTED)),
        "is_open": request.may("algorithm"),
        "list": plain.url("rollouts", **dict(plain.params)),
        "csv": plain.url("rollouts.csv", **dict(plain.params)),
    }
    return PageContent("bulk.html", values, f"{action.capitalize()} rollouts", hidden=hidden)


@pages.post("/ui/bulk")
async def change(request: PageRequest) -> Done:
    """Label, retry or cancel the selected rollouts, with one event for each."""
    action = request.among("action", ("label", "retry", "cancel"), "")
    filters = _filters(request)
    if filters.query.upto is None:
        raise Invalid("upto", "is missing; open the preview again")
    act = _act(request, action)
    back = request.url(
        "rollouts",
        **{name: request.several(name) for name in request.params if name not in _OWN_PARAMETERS and name != "id"},
    )
    if act is None:
        return Done(back, "Nothing was recorded: enter a label or a note.")
    rows = await request.store.core.look(partial(_selected, filters=filters, upto=filters.query.upto), snapshot=True)
    changing = [row.rollout_id for row in rows if _applies(action, row)]
    expected = request.whole("expected", 0)
    if len(changing) > expected:
        raise Conflict(
            f"{len(changing):,} rollouts would change, and the preview showed {expected:,}", "open the preview again"
        )
    errors = list[StoreError]()
    for start in range(0, len(changing), _AT_ONCE):
        # Calls that run at the same time share a commit.
        part = changing[start : start + _AT_ONCE]
        results = await asyncio.gather(*map(act, part), return_exceptions=True)
        for result in results:
            if isinstance(result, StoreError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
    verb = {"label": "Annotated", "retry": "Queued again:", "cancel": "Cancelled"}[action]
    count = len(changing) - len(errors)
    text = f"{verb} {count:,} rollout{'' if count == 1 else 's'}."
    if errors:
        text += f" {len(errors):,} could not be changed, the first because: {str(errors[0])[:300]}"
    return Done(back, text)


def _act(request: PageRequest, action: str) -> Callable[[str], Awaitable[Any]] | None:
    """Return the call for one rollout; None if the form contains no label and no note to record."""
    if action != "label":
        return partial(request.store.update_rollout, status="requeuing" if action == "retry" else "cancelled")
    # Browsers send the lines of a form with CRLF endings.
    note = request.one("note").replace("\r\n", "\n").strip()
    add, remove = (
        [label for text in request.several(name) for part in text.split(",") if (label := part.strip())]
        for name in ("add", "remove")
    )
    if not (note or add or remove):
        return None
    return lambda rollout_id: request.store.annotations.annotate(
        rollout_id, note or None, add_labels=add, remove_labels=remove
    )


def _applies(action: str, row: RolloutRow) -> bool:
    if action == "retry":
        return row.status in TERMINAL
    return action != "cancel" or row.status not in TERMINAL


def _filters(request: PageRequest) -> RolloutFilters:
    """Return the filters of a request.

    Raises:
        Invalid: a filter has an invalid value.
    """
    filters = read_filters(request)
    for name, reason in filters.errors.items():
        raise Invalid(name, reason)
    return filters


async def _selected(session: ReadSession, filters: RolloutFilters, upto: int | None) -> Sequence[RolloutRow]:
    """Return the rollouts of a selection.

    Raises:
        Invalid: there are more than `MOST_ROLLOUTS`.
    """
    query = replace(filters.query, limit=MOST_ROLLOUTS, offset=0, after=None, before=None, upto=upto)
    page = await rollout_page(session, query, filters.missing)
    if page.has_more:
        raise Invalid("selection", f"has more than {MOST_ROLLOUTS:,} rollouts; add a filter")
    return page.rows


@pages.get("/ui/rollouts.csv")
async def rollouts_csv(request: PageRequest) -> File:
    """Return the rollouts of a selection as CSV, with their dimensions and metadata.

    The column `counted_reward` contains the value as which a rollout counts in the means of the list. A text that
    spreadsheets would take for a formula begins with an apostrophe.
    """
    filters = _filters(request)
    missing = filters.missing

    async def read(session: ReadSession) -> list[list[Any]]:
        rows = await _selected(session, filters, filters.query.upto)
        ids = [row.rollout_id for row in rows]
        titles = await input_titles(session, ids, _TITLE_CHARACTERS)
        rewards = await dimensions_of(session, rows, filters.query.reward_version)
        metadata = await metadata_of(session, ids, only_small=False)
        dimensions = sorted({name for values in rewards.values() for name in values} - {PRIMARY})
        keys = sorted({key for values in metadata.values() for key in values})
        heading = [*_FIELDS, "title", "attempts", "spans", "tokens_in", "tokens_out", "started", "seconds", "reward"]
        heading += [f"counted_reward ({missing.label})", *(f"reward.{name}" for name in dimensions)]
        lines: list[list[Any]] = [[*heading, *(f"metadata.{key}" for key in keys)]]
        for row in rows:
            values, content = rewards.get(row.rollout_id, {}), metadata.get(row.rollout_id, {})
            has_tokens = bool(row.tokens_in or row.tokens_out)
            end = row.end_at if row.status in TERMINAL else None
            lines.append(
                [
                    *(getattr(row, name) for name in _FIELDS),
                    *(titles.get(row.rollout_id), row.attempts, row.spans),
                    *((row.tokens_in, row.tokens_out) if has_tokens else (None, None)),
                    row.start_at / MICROSECONDS,
                    None if end is None else (end - row.start_at) / MICROSECONDS,
                    *(row.last_reward, missing.counted(row.status, row.last_reward)),
                    *(values.get(name) for name in dimensions),
                    *(content.get(key) for key in keys),
                ]
            )
        return lines

    text = io.StringIO()
    writer = csv.writer(text)
    for line in await request.store.core.look(read, snapshot=True):
        writer.writerow(f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in line)
    return File("rollouts.csv", text.getvalue().encode(), "text/csv; charset=utf-8")
