"""Writing, packing, restoring and reading the recorded databases."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from pathlib import Path
from typing import Any

from store.db.url import parse, with_partition
from store.opening import open_store
from store.sql.api_keys import Keys
from store.sql.store import SQLStore
from store.testing import ManualClock
from tests import postgres
from tests.client.served import Served
from tests.recorded import story
from tests.recorded.reads import answers, thread_answers
from tests.recorded.wire import ids_of, page_forms, wire_answers

DATA = Path(__file__).parent / "data"
SQLITE = DATA / "sqlite.db.xz"
SECOND_SQLITE = DATA / "sqlite.second.db.xz"
POSTGRES = DATA / "postgres.sql.xz"
FACTS = DATA / "facts.json"
ANSWERS = DATA / "answers.json"
WIRE = DATA / "wire.json"
PAGES = DATA / "pages.json"

SECOND = "second"
"""The name of the second partition."""

# Lines of a dump that only some versions of Postgres know, or that differ from one dump to the next.
_NOT_PORTABLE = re.compile(
    r"^(SET transaction_timeout|SET default_table_access_method|\\(un)?restrict|--).*\n", re.MULTILINE
)
_PROVEN = ("chain_head", "state_hash", "commits", "events", "streams", "rows", "last_position")


async def write(url: str) -> dict[str, Any]:
    """Write both partitions and the keys of an empty database; return the facts about them."""
    clock = clock_at(story.START)
    with story.determined(clock):
        async with await opened(url, clock) as store:
            await story.write(store, clock)
            facts_by_name: dict[str, Any] = {"main": await facts(store), "end": clock.seconds}
        clock = clock_at(story.START)
        async with await opened(with_partition(url, SECOND), clock) as second:
            await story.write_second(second, clock)
            facts_by_name["second"] = await facts(second)
        facts_by_name["keys"] = await _write_keys(url)
    return facts_by_name


async def opened(url: str, clock: ManualClock, *, create: bool = True) -> SQLStore:
    """Open a partition with a clock of the test's own."""
    store = await open_store(url, clock=clock, scan_debounce_seconds=0, create=create)
    assert isinstance(store, SQLStore)
    return store


async def read(url: str, served: Served, end: float) -> dict[Path, Any]:
    """Return what reads of the main partition answer, by the file that it is kept in."""
    async with await opened(url, clock_at(end), create=False) as store:
        with served.serving(store) as address:
            ids = await ids_of(store)
            return {
                ANSWERS: {**await answers(store), **await thread_answers(store)},
                WIRE: await wire_answers(address, ids),
                PAGES: await page_forms(address, ids),
            }


def clock_at(seconds: float) -> ManualClock:
    """Return a clock that stands still."""
    return ManualClock(round(seconds * 1_000_000))


async def facts(store: SQLStore) -> dict[str, Any]:
    """Prove a partition and return what is the same on every database: hashes, counts, events by type."""
    report = await store.log.verify()
    assert report.differences == []
    proven = {name: value for name, value in report.model_dump(mode="json").items() if name in _PROVEN}
    return {**proven, "types": dict(sorted(Counter([event.type async for event in store.log.tail()]).items()))}


async def _write_keys(url: str) -> list[dict[str, Any]]:
    """Make a key that counts, one that was revoked, and one of the second partition that expires."""
    keys = await Keys.open(url, create=False)
    try:
        created = [
            await keys.create("admin", name="operator"),
            await keys.create("reader", partition=SECOND, name="dashboard", expires_seconds=3_600),
            await keys.create("runner"),
        ]
        revoked = await keys.revoke(created[-1][0].key_id)
    finally:
        await keys.close()
    return [
        {
            "key_id": key.key_id,
            "role": key.role,
            "partition": key.partition,
            "name": key.name,
            "is_revoked": key.key_id == revoked.key_id,
            "text": text,
        }
        for key, text in created
    ]


def pack(file: Path, content: bytes) -> None:
    """Write a compressed file."""
    file.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def dumped(url: str) -> bytes:
    """Return a Postgres database as SQL that older and newer servers take."""
    return _NOT_PORTABLE.sub("", postgres.dump(url)).encode()


def write_json(file: Path, content: Any) -> None:
    """Write JSON in a form that diffs well."""
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def restore(url: str) -> None:
    """Restore both partitions and the keys into an empty database, given by the URL of its main partition."""
    if parse(url).scheme == "postgresql":
        postgres.execute(url, lzma.decompress(POSTGRES.read_bytes()).decode())
        return
    for target, packed in ((url, SQLITE), (with_partition(url, SECOND), SECOND_SQLITE)):
        path = parse(target).path
        assert path is not None
        path.write_bytes(lzma.decompress(packed.read_bytes()))


def load_json(file: Path) -> Any:
    """Return the content of a file of JSON."""
    return json.loads(file.read_text())
