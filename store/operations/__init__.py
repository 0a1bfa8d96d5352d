"""Copies of whole stores: between databases, into a backup, and from a backup.

A copy has the id, the log and the state of the store. It gets its name only when it is complete and verified, so a copy
that was stopped is never used as a store. The same call continues a copy that was stopped.
"""

from store.operations.backup import backup_store, restore_store
from store.operations.copying import copy_store
from store.operations.progress import CopyProgress, OnProgress
from store.operations.reports import BackupSeal, CopyReport

__all__ = ["BackupSeal", "CopyProgress", "CopyReport", "OnProgress", "backup_store", "copy_store", "restore_store"]
