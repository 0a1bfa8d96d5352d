"""Tables of annotations, which are labels and notes that users add to rollouts."""

from sqlalchemy import BigInteger, Column, Index

from store.db.columns import Str, keyed

labels = keyed(
    "labels",
    Column("rollout_id", Str, primary_key=True),
    Column("label", Str, primary_key=True),
    # The position of the event that last added the label.
    Column("position", BigInteger, nullable=False),
    Index(None, "label", "rollout_id"),
)

# The author, the time and the text of a note are not stored here, but in the event at `position`. `version` is the
# number of this event among the events of the rollout.
notes = keyed(
    "notes",
    Column("rollout_id", Str, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
)

ANNOTATIONS = (labels, notes)
