"""Operations on whole stores: copies, backups, removal of payload or of a partition, and a diagnosis.

A copy has the id, the log and the state of the store. It gets its name only when it is complete and, by default,
verified. So a copy that was stopped is never used as a store, and the same call continues it. Payload is removed by a
policy, or from single events by hand, and the log names each removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.operations.archive import ArchiveReport, archive_payload
    from store.operations.backup import backup_store, restore_store
    from store.operations.choices import Redaction, Search
    from store.operations.compaction import CompactReport, compact
    from store.operations.copying import copy_store
    from store.operations.doctor import CheckResult, Diagnosis, diagnose
    from store.operations.dropping import DropReport, drop_partition
    from store.operations.forgetting import ForgetReport, Match, forget
    from store.operations.policy import RetentionPolicy
    from store.operations.redaction import RedactionReport, redact
    from store.operations.reports import ArchiveContents, BackupSeal, CopyReport
    from store.operations.retention import RetentionReport, remove_payload
    from store.runtime.progress import OnProgress, OperationProgress

__all__ = [
    "ArchiveContents",
    "ArchiveReport",
    "BackupSeal",
    "CheckResult",
    "CompactReport",
    "CopyReport",
    "Diagnosis",
    "DropReport",
    "ForgetReport",
    "Match",
    "OnProgress",
    "OperationProgress",
    "Redaction",
    "RedactionReport",
    "RetentionPolicy",
    "RetentionReport",
    "Search",
    "archive_payload",
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

# Servers and commands use at most a few of the operations, so the module of each is imported when it is first used.
_LATE = {
    "ArchiveContents": "store.operations.reports",
    "ArchiveReport": "store.operations.archive",
    "BackupSeal": "store.operations.reports",
    "CheckResult": "store.operations.doctor",
    "CompactReport": "store.operations.compaction",
    "OperationProgress": "store.runtime.progress",
    "CopyReport": "store.operations.reports",
    "Diagnosis": "store.operations.doctor",
    "DropReport": "store.operations.dropping",
    "ForgetReport": "store.operations.forgetting",
    "Match": "store.operations.forgetting",
    "OnProgress": "store.runtime.progress",
    "Redaction": "store.operations.choices",
    "RedactionReport": "store.operations.redaction",
    "RetentionPolicy": "store.operations.policy",
    "RetentionReport": "store.operations.retention",
    "Search": "store.operations.choices",
    "archive_payload": "store.operations.archive",
    "backup_store": "store.operations.backup",
    "compact": "store.operations.compaction",
    "copy_store": "store.operations.copying",
    "diagnose": "store.operations.doctor",
    "drop_partition": "store.operations.dropping",
    "forget": "store.operations.forgetting",
    "redact": "store.operations.redaction",
    "remove_payload": "store.operations.retention",
    "restore_store": "store.operations.backup",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
