"""The tables of annotations: projections of the labels and notes of rollouts."""

from sqlalchemy import BigInteger, Column, Index

from store.db.columns import Str, keyed

labels = keyed(
    "labels",
    Column("rollout_id", Str, primary_key=True),
    Column("label", Str, primary_key=True),
    # Of the event that put it there last.
    Column("position", BigInteger, nullable=False),
    Index(None, "label", "rollout_id"),
)

# Who made a note and when stands in its event, and the text in the event's body.
notes = keyed(
    "notes",
    Column("rollout_id", Str, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
)

ANNOTATIONS = (labels, notes)
