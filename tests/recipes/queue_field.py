"""A rollout field that orders the queue: rollouts of a higher priority are claimed first."""

from tests.recipes.scratch import Recipe, Scratch

_MIGRATION = '''"""The queue is ordered by priority, then by position."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the rank by which the queue is ordered: what waits has priority 0."""
    op.add_column("queue", sa.Column("rank", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_queue_rank_position", "queue", ["rank", "position"])
'''


def _apply(scratch: Scratch) -> None:
    _model_and_state(scratch)
    _row(scratch)
    _table(scratch)
    _loading(scratch)


def _model_and_state(scratch: Scratch) -> None:
    scratch.replace(
        "store/models/rollouts.py",
        "    max_attempts: int = Field(default=1, ge=1)\n",
        "    priority: int = Field(default=0, ge=-1000, le=1000)\n"
        '    """Rollouts of a higher priority are claimed first, equal ones in the order of the log."""\n'
        "    max_attempts: int = Field(default=1, ge=1)\n",
    )
    scratch.insert(
        "store/sql/commands/rollouts.py",
        '        "max_attempts": config.max_attempts,\n',
        '        **({"priority": config.priority} if config.priority else {}),\n',
    )
    scratch.replace(
        "store/domain/rollout.py",
        "        return None if self.queued_position is None else (self.queued_position,)\n",
        "        if self.queued_position is None:\n"
        "            return None\n"
        '        return (-self.config.get("priority", 0), self.queued_position)\n',
    )


def _row(scratch: Scratch) -> None:
    path = "store/projections/rollouts.py"
    scratch.replace(
        path,
        "    if queued_before is not None:\n",
        "    if queued_before is not None and queued_before[-1] != state.queued_position:\n",
    )
    scratch.replace(
        path,
        "        changes.inserts.setdefault(core_tables.queue, []).append(row)\n",
        "        changes.upserts.setdefault(core_tables.queue, []).append(row)\n",
    )
    scratch.replace(
        path,
        "    if working_set.queue_reordered:\n",
        "    if working_set.queue_reordered or any(_may_overtake(working_set)):\n",
    )
    scratch.insert(
        path,
        "append((1, tail.queue_epoch + 1))\n",
        """

def _may_overtake(working_set: WorkingSet) -> Iterator[bool]:
    # Rollouts of another priority may wait before the rows of the queue that were loaded last.
    for rollout_id, before in working_set.queued_before.items():
        place = working_set.rollouts[rollout_id].queue_place
        yield place is not None and place != before and place[0] != 0
""",
    )
    scratch.replace(
        path,
        "from operator import attrgetter\n",
        "from collections.abc import Iterator\nfrom operator import attrgetter\n",
    )


def _table(scratch: Scratch) -> None:
    tables = "store/db/tables/core.py"
    position = '    Column("position", BigId, primary_key=True, autoincrement=False),\n'
    rollout_id = '    Column("rollout_id", Str, nullable=False),\n'
    scratch.replace(
        tables,
        f"{position}{rollout_id}",
        f"{position}{rollout_id}"
        '    Column("rank", Integer, nullable=False, server_default="0"),\n'
        '    Index("ix_queue_rank_position", "rank", "position"),\n',
    )
    scratch.replace(tables, "QUEUE_ORDER = (queue.c.position,)\n", "QUEUE_ORDER = (queue.c.rank, queue.c.position)\n")
    scratch.create("migrations/versions/0022_queue_rank.py", _MIGRATION)


def _loading(scratch: Scratch) -> None:
    scratch.replace(
        "store/journal/loader.py",
        "            self._watermark = (*order, position - 1)\n",
        "            # Lower priorities may wait before the watermark as soon as there is one of theirs.\n"
        "            if order[0] <= 0:\n"
        "                self._watermark = (*order, position - 1)\n",
    )
    scratch.replace(
        "store/db/queries/rollout_history.py",
        '        ahead = select(func.count()).select_from(core_tables.queue).where(queue.position < _int("queued"))\n',
        '        own = select(queue.rank).where(queue.position == _int("queued")).scalar_subquery()\n'
        '        is_ahead = (queue.rank < own) | ((queue.rank == own) & (queue.position < _int("queued")))\n'
        "        ahead = select(func.count()).select_from(core_tables.queue).where(is_ahead)\n",
    )


RECIPE = Recipe(
    "rollout field that orders the queue",
    8,
    _apply,
    '''"""Rollouts of a higher priority are claimed first; an older database is upgraded, and its log stays the same."""

from store import RolloutConfig, open_store
from tests.alembic_check import check
from tests.recorded import recording


async def enqueue(store, name, priority):
    return await store.enqueue_rollout(name, config=RolloutConfig(priority=priority, max_attempts=3))


async def claimed(store):
    taken = await store.dequeue_rollout("worker")
    return None if taken is None else taken.input


async def test_a_higher_priority_comes_first(tmp_path):
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        for name, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 7)):
            await enqueue(store, name, priority)
        assert [await claimed(store), await claimed(store)] == ["high", "first"]
        await enqueue(store, "higher", 8)
        assert [await claimed(store) for _ in range(4)] == ["higher", "second", "low", None]
        await enqueue(store, "last", -9)
        await enqueue(store, "third", 0)
        assert [await claimed(store) for _ in range(3)] == ["third", "last", None]
        report = await store.log.verify()
        assert report.ok
        assert (await store.log.rebuild()).written == {}


async def test_a_changed_priority_moves_what_waits(tmp_path):
    url = f"sqlite:///{tmp_path / 'run.db'}"
    async with await open_store(url) as store:
        one, two = await enqueue(store, "one", 0), await enqueue(store, "two", 0)
        await store.update_rollout(two.rollout_id, config=RolloutConfig(priority=1))
        three = await enqueue(store, "three", 0)
        assert await claimed(store) == "two"
        await store.update_rollout(three.rollout_id, config=RolloutConfig(priority=2))
        assert await claimed(store) == "three"
        await enqueue(store, "four", 0)
        await store.update_rollout(one.rollout_id, config=RolloutConfig(priority=-1))
    async with await open_store(url) as store:
        assert [await claimed(store) for _ in range(3)] == ["four", "one", None]
        assert (await store.log.verify()).ok


async def test_an_older_database_is_upgraded(tmp_path):
    url = f"sqlite:///{tmp_path / 'recorded.db'}"
    recording.restore(url)
    async with await open_store(url) as store:
        report = await store.log.verify()
    assert report.ok
    assert report.chain_head == recording.load_json(recording.FACTS)["main"]["chain_head"]
    assert await check(url) is None
''',
)
