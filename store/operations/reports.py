"""Results of copies."""

from store.models import Seal
from store.models.enums import Frozen


class ArchiveContents(Frozen):
    """The policy of an archive, and the last commit that was copied from the store."""

    policy: str
    """The policy that selected the payload, in words."""
    commit_id: int
    """The last commit of the store that was copied to the archive."""
    chain_head: str
    """The hash of this commit in hex."""
    position: int
    """The position of the last event of this commit. No later payload of the store is in the archive."""


class BackupSeal(Seal):
    """A seal of a backup or an archive. The file contains it, as JSON in the table `backup_seal`."""

    tables: str
    """SHA-256 in hex over the copied rows that the hash chain does not fully cover, for example keys of calls."""
    archive: ArchiveContents | None = None
    """The contents of an archive; None for a backup."""


class PartContents(Frozen):
    """The rollouts of a store that conditions select, with everything that a copy of them contains."""

    origin: Seal
    """The store, and the last commit of its log when the rollouts were selected."""
    conditions: str
    """The conditions in words."""
    rollouts: int
    unfinished: int
    """The number of these rollouts that have not ended."""
    resources: int
    """The number of ids of resources that these rollouts were given."""
    events: int
    """The number of events of the rollouts and the resources."""


class CopyReport(Frozen):
    """The result of a copy, of a backup, or of the restoration of a backup."""

    store_id: str
    """The id of the copy. A copy of a whole store has the id of the store."""
    commit_id: int
    """The last commit of the copy; 0 for an empty log."""
    position: int
    """The position of the last event of the copy; 0 for an empty log."""
    chain_head: str
    """Hash of the last commit in hex. It covers all commits before, so the logs are equal up to this commit."""
    state_hash: str
    """Hash of the rows of all projections in hex, as in `VerifyReport`."""
    events: int
    """The number of events in the copy."""
    events_before: int
    """The number of events that an earlier run, which was stopped, had copied."""
    size_bytes: int
    """The size of the copy on disk, in bytes."""
    is_verified: bool
    seconds: float
    seal: BackupSeal | None = None
    """The seal in the file of the backup; None for a copy."""
    part: PartContents | None = None
    """The selection of a copy of some rollouts; None for a copy of a whole store."""
