"""The first tab of a rollout: the transcript of one attempt, with messages, tool calls, rewards and an outline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from store.dashboard.page import File, PageContent, Pages
from store.dashboard.pages.rollout_frame import Looked, look
from store.dashboard.request import PageRequest
from store.dashboard.transcripts.turns import Block, blocks_of, outline_of, renumbered, sections_of
from store.dashboard.views.formats import pretty
from store.dashboard.views.group_place import GroupPlace, place_of
from store.dashboard.views.markdown import Prose
from store.dashboard.views.media import image_of, readable
from store.dashboard.views.transcript import Entry, Text, transcript
from store.db.dialect import ReadSession
from store.db.queries.groups import MemberQuery, group_row, member_rows
from store.db.queries.span_places import spans_before
from store.domain.rollout import TERMINAL
from store.errors import NotFound
from store.models import Span

pages = Pages()

SPANS: Final = 200
"""The number of spans per page of the transcript."""
_TASK: Final = 4_000
_MEMBERS: Final = 500
"""The maximum number of rollouts of a group that are read for the place of a reward."""
_IMAGE_HEADERS: Final = ((b"content-security-policy", b"sandbox; default-src 'none'"),)


@pages.get("/ui/rollouts/{rollout_id}/transcript")
@pages.get("/ui/rollouts/{rollout_id}")
async def rollout(request: PageRequest) -> PageContent:
    """Show the transcript of an attempt of a rollout.

    The parameters are `at`, `attempt`, `offset`, `sequence`: the number of a span whose page is shown, `full`: the id
    of a span whose texts are shown in full, and `text`: `markdown` or `plain`.
    """
    looked = await look(request)
    offset, full = request.whole("offset", 0), request.several("full")
    sequence_id = request.maybe_whole("sequence")
    if sequence_id is not None and looked.attempt is not None and not offset:
        ids = looked.rollout_id, looked.attempt.attempt_id
        before = await request.store.core.look(lambda session: spans_before(session, *ids, sequence_id))
        offset = before // SPANS * SPANS
    is_plain = request.among("text", ("markdown", "plain"), "markdown") == "plain"
    page = await looked.spans(limit=SPANS, offset=offset, sort_by="sequence_id")
    looked = looked.with_rewards_of(page.items)
    content = looked.rollout.input
    task = readable(content if isinstance(content, str) else pretty(content))
    # Preparing long texts takes time, so it runs in a thread and does not block other requests.
    work = partial(_read, page.items, full, is_first=not offset, is_plain=is_plain)
    entries, blocks, prose = await asyncio.to_thread(work)
    outline = outline_of(blocks)
    values: dict[str, Any] = {
        "task": Text(task[:_TASK], len(task)),
        "turns": blocks,
        "outline": outline,
        "group": await _group_place(looked),
        "spans": {"offset": offset, "limit": SPANS, "total": page.total},
    }
    if request.is_twin:
        values["entries"] = entries
    hidden = {
        "sections": sections_of(blocks),
        "prose": prose,
        "is_plain": is_plain,
        "is_run": looked.row["run_version"] is not None,
        "is_followed": looked.at is None and looked.is_latest and looked.rollout.status not in TERMINAL,
        "last_reward": next((block.anchor for block in reversed(blocks) if block.kind == "reward"), ""),
        "counts": {
            "tools": sum(item.kind == "tool" for item in outline),
            "errors": sum(item.is_failure for item in outline),
        },
    }
    return looked.page("transcript", "rollout_transcript.html", values, **hidden)


def _read(
    spans: Sequence[Span], full: Sequence[str], *, is_first: bool, is_plain: bool
) -> tuple[list[Entry], list[Block], dict[str, Markup]]:
    entries = transcript(spans, full=full)
    blocks = blocks_of(entries)
    prose = Prose()
    rendered = {
        block.anchor: html
        for block in blocks
        if not is_plain and block.text is not None and block.kind != "log"
        if (html := prose.render(block.text.shown)) is not None
    }
    return entries, blocks if is_first else renumbered(blocks), rendered


async def _group_place(looked: Looked) -> GroupPlace | None:
    """Return the place of the reward in the group of the rollout; None for a past moment."""
    group_id = looked.row["group_id"]
    if group_id is None or looked.row["last_reward"] is None or looked.at is not None:
        return None

    async def read(session: ReadSession) -> GroupPlace | None:
        group = await group_row(session, group_id)
        members = await member_rows(session, MemberQuery(group_id, limit=_MEMBERS))
        return place_of(group_id, looked.rollout_id, members, len(members) if group is None else group.rollouts)

    return await looked.request.store.core.look(read, snapshot=True)


@pages.get("/ui/rollouts/{rollout_id}/media/{span_id}/{key}")
async def medium(request: PageRequest) -> File:
    """Return an image of a message. The key is that of a `Medium`; the parameters are `at` and `attempt`."""
    looked = await look(request)
    span_id, key = request.ids["span_id"], request.ids["key"]
    page = await looked.spans(limit=1, span_id=span_id)
    image = await asyncio.to_thread(image_of, page.items[0].attributes, key) if page.items else None
    if image is None:
        raise NotFound("image", key, f"span {span_id[:80]!r} has no image {key[:80]!r} at this moment")
    body, media_type = image
    return File(f"{key}.{media_type.rpartition('/')[2]}", body, media_type, _IMAGE_HEADERS)
