"""Operations on whole stores: copies, backups, removal of payload or of a partition, and a diagnosis.

A copy has the id, the log and the state of the store. It gets its name only when it is complete and, by default,
verified. So a copy that was stopped is never used as a store, and the same call continues it. Payload is removed by a
policy, or from single events by hand, and the log names each removal.
"""

from store.operations.backup import backup_store, restore_store
from store.operations.compaction import CompactReport, compact
from store.operations.copying import copy_store
from store.operations.doctor import CheckResult, Diagnosis, diagnose
from store.operations.dropping import DropReport, drop_partition
from store.operations.forgetting import ForgetReport, Match, Search, forget
from store.operations.policy import RetentionPolicy
from store.operations.progress import CopyProgress, OnProgress
from store.operations.redaction import Redaction, RedactionReport, redact
from store.operations.reports import BackupSeal, CopyReport
from store.operations.retention import RetentionReport, remove_payload

__all__ = [
    "BackupSeal",
    "CheckResult",
    "CompactReport",
    "CopyProgress",
    "CopyReport",
    "Diagnosis",
    "DropReport",
    "ForgetReport",
    "Match",
    "OnProgress",
    "Redaction",
    "RedactionReport",
    "RetentionPolicy",
    "RetentionReport",
    "Search",
    "backup_store",
    "compact",
    "copy_store",
    "diagnose",
    "drop_partition",
    "forget",
    "redact",
    "remove_payload",
    "restore_store",
]
