"""Tables of threads: projections of the data of LangGraph checkpointers."""

from sqlalchemy import BigInteger, Column, Integer

from store.db.columns import Str, keyed

# A thread without checkpoints keeps its row, because its stream continues.
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
    # The position of the event that has the body. For a copy it is an event of another thread.
    Column("body_position", BigInteger, nullable=False),
)

thread_writes = keyed(
    "thread_writes",
    Column("thread_id", Str, primary_key=True),
    Column("ns", Str, primary_key=True),
    Column("checkpoint_id", Str, primary_key=True),
    Column("task_id", Str, primary_key=True),
    # Negative for LangGraph's special writes: errors, interrupts, and values of resumed interrupts.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("channel", Str, nullable=False),
    Column("task_path", Str, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("body_position", BigInteger, nullable=False),
)

THREADS = (threads, thread_checkpoints, thread_writes)
