"""A rollout field that orders the queue: rollouts of a higher priority are claimed first."""

from tests.recipes.scratch import Recipe, Scratch

_MIGRATION = '''"""The queue is ordered by priority, then by position."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the rank by which the queue is ordered: what waits has priority 0."""
    op.add_column("queue", sa.Column("rank", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_queue_rank_position", "queue", ["rank", "position"])
'''


def _apply(scratch: Scratch) -> None:
    _model_and_state(scratch)
    _working_set(scratch)
    _rows(scratch)
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
        "    @property\n    def latest(self) -> AttemptState | None:\n",
        '''    @property
    def queue_place(self) -> tuple[int, int] | None:
        """Its place in the queue, the lowest first: (rank, position). The rank is the negative priority."""
        position = self.queued_position
        return None if position is None else (-self.config.get("priority", 0), position)

    @property
    def latest(self) -> AttemptState | None:
''',
    )


def _working_set(scratch: Scratch) -> None:
    path = "store/domain/working_set.py"
    scratch.replace(path, "EVERYTHING = 2**63 - 1\n", "EVERYTHING = (2**31 - 1, 2**63 - 1)\n")
    scratch.replace(
        path,
        "    heads: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])\n",
        "    heads: list[tuple[tuple[int, int], str]] = field(default_factory=list[tuple[tuple[int, int], str]])\n",
    )
    scratch.replace(path, "    heads_until: int = EVERYTHING\n", "    heads_until: tuple[int, int] = EVERYTHING\n")
    scratch.replace(
        path,
        "    queued_before: dict[str, int | None] = field(default_factory=dict[str, int | None])\n",
        "    queued_before: dict[str, tuple[int, int] | None] = field(\n"
        "        default_factory=dict[str, tuple[int, int] | None]\n"
        "    )\n",
    )
    scratch.replace(path, "= state.queued_position if state else None\n", "= state.queue_place if state else None\n")
    scratch.replace(
        path,
        "        position = self.rollouts[rollout_id].queued_position\n"
        "        assert position is not None  # it has just joined\n"
        "        heapq.heappush(self.heads, (position, rollout_id))\n",
        "        place = self.rollouts[rollout_id].queue_place\n"
        "        assert place is not None  # it has just joined\n"
        "        heapq.heappush(self.heads, (place, rollout_id))\n"
        "        if place[0]:\n"
        "            # Rows of the queue before the ones that were loaded last may wait again.\n"
        "            self.queue_reordered = True\n",
    )
    scratch.replace(
        path, "        taken: list[tuple[int, str]] = []\n", "        taken: list[tuple[tuple[int, int], str]] = []\n"
    )
    scratch.replace(
        path, "            position, rollout_id = heapq.heappop(", "            place, rollout_id = heapq.heappop("
    )
    scratch.replace(path, ".queued_position == position:\n", ".queue_place == place:\n")
    scratch.replace(
        path,
        "                taken.append((position, rollout_id))\n",
        "                taken.append((place, rollout_id))\n",
    )
    scratch.replace(
        "store/sql/waiters.py",
        "            if state.queued_position is not None and state.queued_position != before:\n",
        "            if state.queue_place is not None and state.queue_place != before:\n",
    )


def _rows(scratch: Scratch) -> None:
    path = "store/projections/rollouts.py"
    scratch.replace(
        path,
        "    return None if state.queued_position is None else (state.queued_position, state.rollout_id)\n",
        "    place = state.queue_place\n    return None if place is None else (place[1], state.rollout_id, place[0])\n",
    )
    scratch.replace(
        path,
        "def _requeue(queued_before: int | None, state",
        "def _requeue(queued_before: tuple[int, int] | None, state",
    )
    scratch.replace(
        path, "    if state.queued_position == queued_before:\n", "    if state.queue_place == queued_before:\n"
    )
    scratch.replace(
        path,
        "    if queued_before is not None:\n",
        "    if queued_before is not None and queued_before[1] != state.queued_position:\n",
    )
    scratch.replace(path, ".append((queued_before,))\n", ".append((queued_before[1],))\n")
    scratch.replace(
        path,
        "        changes.inserts.setdefault(core_tables.queue, []).append(row)\n",
        "        changes.upserts.setdefault(core_tables.queue, []).append(row)\n",
    )
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
    scratch.create("migrations/versions/0016_queue_rank.py", _MIGRATION)
    scratch.replace("store/db/schema/history.py", 'HEAD = "0015"\n', 'HEAD = "0016"\n')


def _loading(scratch: Scratch) -> None:
    queries = "store/db/queries/working_set.py"
    scratch.replace(
        queries,
        "        select(queue.c.position, queue.c.rollout_id)\n"
        '        .where(queue.c.position > bindparam("watermark", type_=BigInteger))\n'
        "        .order_by(queue.c.position)\n",
        "        select(queue.c.position, queue.c.rollout_id, queue.c.rank)\n"
        "        .where(\n"
        "            tuple_(queue.c.rank, queue.c.position)\n"
        '            > tuple_(bindparam("rank", type_=Integer), bindparam("watermark", type_=BigInteger))\n'
        "        )\n"
        "        .order_by(queue.c.rank, queue.c.position)\n",
    )
    scratch.replace(queries, "bindparam, func, or_, select\n", "bindparam, func, or_, select, tuple_\n")
    loader = "store/journal/loader.py"
    scratch.replace(loader, "        self._watermark = 0\n", "        self._watermark = FIRST\n")
    scratch.replace(
        loader,
        "            self._watermark, self._epoch = 0, tail.queue_epoch\n",
        "            self._watermark, self._epoch = FIRST, tail.queue_epoch\n",
    )
    scratch.replace(
        loader,
        "        if heads:\n            self._watermark = heads[0][0] - 1\n",
        "        # Lower priorities may wait before the watermark as soon as there is one of theirs.\n"
        "        if heads and heads[0][2] <= 0:\n            self._watermark = (heads[0][2], heads[0][0] - 1)\n",
    )
    scratch.replace(
        loader,
        "        for position, rollout_id in heads:\n"
        "            heapq.heappush(working_set.heads, (position, rollout_id))\n"
        "        working_set.heads_until = heads[-1][0] if",
        "        for position, rollout_id, rank in heads:\n"
        "            heapq.heappush(working_set.heads, ((rank, position), rollout_id))\n"
        "        working_set.heads_until = (heads[-1][2], heads[-1][0]) if",
    )
    scratch.replace(loader, "beyond: int | None = None", "beyond: tuple[int, int] | None = None")
    scratch.replace(
        loader,
        '            "watermark": self._watermark if beyond is None else beyond,\n',
        '            "rank": (self._watermark if beyond is None else beyond)[0],\n'
        '            "watermark": (self._watermark if beyond is None else beyond)[1],\n',
    )
    scratch.replace(loader, "_MAX_CACHED = 10_000\n", "_MAX_CACHED = 10_000\nFIRST = (-(2**31), 0)\n")
    story = "store/db/reports/rollout_story.py"
    scratch.replace(
        story,
        '        ahead = select(func.count()).select_from(core_tables.queue).where(queue.position < _int("queued"))\n',
        '        own = select(queue.rank).where(queue.position == _int("queued")).scalar_subquery()\n'
        '        is_ahead = (queue.rank < own) | ((queue.rank == own) & (queue.position < _int("queued")))\n'
        "        ahead = select(func.count()).select_from(core_tables.queue).where(is_ahead)\n",
    )


RECIPE = Recipe(
    "rollout field that orders the queue",
    14,
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
    async with await open_store(url) as store:
        assert [await claimed(store) for _ in range(3)] == ["two", "one", None]
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
