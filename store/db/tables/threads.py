"""The tables of threads: projections of what LangGraph checkpointers keep."""

from sqlalchemy import BigInteger, Column, Integer

from store.db.columns import Str, keyed

# One whose checkpoints were all taken away keeps its row: its stream goes on.
threads = keyed(
    "threads",
    Column("thread_id", Str, primary_key=True),
    Column("stream_version", BigInteger, nullable=False),
    Column("first_position", BigInteger, nullable=False),
    Column("last_position", BigInteger, nullable=False),
)

thread_checkpoints = keyed(
    "thread_checkpoints",
    Column("thread_id", Str, primary_key=True),
    Column("ns", Str, primary_key=True),
    Column("checkpoint_id", Str, primary_key=True),
    Column("parent_id", Str),
    Column("run_id", Str, index=True),
    Column("source", Str),
    Column("step", BigInteger),
    Column("position", BigInteger, nullable=False),
    # Of the event whose body it has, another one for a copy.
    Column("body_position", BigInteger, nullable=False),
)

thread_writes = keyed(
    "thread_writes",
    Column("thread_id", Str, primary_key=True),
    Column("ns", Str, primary_key=True),
    Column("checkpoint_id", Str, primary_key=True),
    Column("task_id", Str, primary_key=True),
    # Negative for what LangGraph writes of its own: errors, interrupts, what they were resumed with.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("channel", Str, nullable=False),
    Column("task_path", Str, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("body_position", BigInteger, nullable=False),
)

THREADS = (threads, thread_checkpoints, thread_writes)
