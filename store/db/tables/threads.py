"""Tables of threads, which are the conversations whose state LangGraph's checkpointers save.

The rows are computed from the events of the log.
"""

from sqlalchemy import BigInteger, Column, Integer

from store.db.columns import Str, keyed

# `stream_version` is the number of the thread's last event. If all checkpoints of a thread are deleted, the row of the
# thread remains, because later events of the thread get the following numbers.
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
    # The position of the event that has the body (the saved state). For a copied checkpoint, this event belongs to the
    # thread from which the checkpoint was copied.
    Column("body_position", BigInteger, nullable=False),
)

thread_writes = keyed(
    "thread_writes",
    Column("thread_id", Str, primary_key=True),
    Column("ns", Str, primary_key=True),
    Column("checkpoint_id", Str, primary_key=True),
    Column("task_id", Str, primary_key=True),
    # The number of the write in its task. Special writes of LangGraph have negative numbers: errors, interrupts, and
    # values with which interrupts are resumed.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("channel", Str, nullable=False),
    Column("task_path", Str, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("body_position", BigInteger, nullable=False),
)

THREADS = (threads, thread_checkpoints, thread_writes)
