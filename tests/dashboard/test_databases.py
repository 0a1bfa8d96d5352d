"""Every page is the same on every database."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from store import open_store
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests.dashboard.filled import address, fill, page_paths
from tests.dashboard.page_helpers import Read
from tests.dashboard.traces import member
from tests.server.api import speaking_to

OF_THE_DATABASE = ("/ui/admin", "/ui/admin/checks")
"""These pages describe the database, and its tests compare them with it."""
CHOICES = frozenset({"sort", "desc", "by", "view", "mode", "status", "spread", "name"})
"""Two links of a page that differ in the value of another parameter need the same SQL."""


_RANDOM = re.compile("[0-9a-f]{32,}|[0-9a-f]{18}…[0-9a-f]{9}|[0-9.]+ [KMG]iB")
"""Hashes, also cut ones, ids of requests, and sizes of databases."""


class Names:
    """Replaces ids by their numbers, and other values that differ by a dash."""

    def __init__(self, ids: list[str]) -> None:
        self._numbers = {id_: f"id {number}" for number, id_ in enumerate(ids)}
        self._pattern = re.compile("|".join(map(re.escape, ids)))

    def replace(self, text: str) -> str:
        return _RANDOM.sub("-", self._pattern.sub(lambda match: self._numbers[match[0]], text))


def _choices(link: str) -> set[tuple[str, str, str]]:
    """Return what decides about the SQL of a page: of a list and of each part of it, every parameter."""
    parts = urlsplit(link)
    # The third part is an id, and the fifth part is one of a span.
    page = "/".join("*" if place in {3, 5} else part for place, part in enumerate(parts.path.split("/")))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    return {(page, "", "")} | {(page, name, value if name in CHOICES else "") for name, value in pairs}


async def _site(url: str) -> dict[str, str]:
    """Fill a store, and return each of its pages, with those that they link to."""
    async with await open_store(url, clock=ManualClock(), scan_debounce_seconds=0) as store:
        assert isinstance(store, SQLStore)
        filled = await fill(store)
        for number, reward in enumerate((0.25, 0.75, None)):
            await member(store, "other", reward, step=number, mode="val", worker_id=f"w-{number}")
        await store.annotations.annotate(filled.rollout_id, "a note", add_labels=["odd"])
        log = [event async for event in store.log.tail()]
        ids = [
            event.stream.partition("/")[2] for event in log if event.stream.startswith(("rollout/", "resources/rs-"))
        ]
        ids += [event.data["attempt_id"] for event in log if "attempt_id" in event.data]
        names = Names([*dict.fromkeys(ids), store.core.store_id])
        pages = dict[str, str]()
        async with speaking_to(Partitions(store)) as api:
            paths = deque(address(path, filled) for path in page_paths() if path not in OF_THE_DATABASE)
            seen = set[tuple[str, str, str]]().union(*map(_choices, paths))
            while paths:
                path = paths.popleft()
                answer = await api.get(f"/{path}")
                pages[names.replace(path)] = names.replace(f"{answer.status} {answer.body.decode(errors='replace')}")
                if not answer.headers["content-type"].startswith("text/html"):
                    continue
                for link in Read(answer.body).links:
                    path = link.partition("#")[0]
                    is_of_store = path.startswith("/ui/") and path.partition("?")[0] not in OF_THE_DATABASE
                    if is_of_store and ".json" not in path and not _choices(path) <= seen:
                        seen |= _choices(path)
                        paths.append(path)
        return pages


async def test_a_page_is_the_same_on_sqlite_and_postgres(postgres_url: str, tmp_path: Path) -> None:
    sqlite, postgres = await _site(f"sqlite:///{tmp_path / 'rollbook.db'}"), await _site(postgres_url)
    assert len(sqlite) > 50
    assert set(sqlite) == set(postgres)
    assert [path for path, page in sqlite.items() if page != postgres[path]] == []
