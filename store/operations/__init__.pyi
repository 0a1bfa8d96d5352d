from store.operations.archive import ArchiveReport as ArchiveReport, archive_payload as archive_payload
from store.operations.backup import backup_store as backup_store, restore_store as restore_store
from store.operations.choices import Redaction as Redaction, Search as Search
from store.operations.compaction import CompactReport as CompactReport, compact as compact
from store.operations.copying import copy_store as copy_store
from store.operations.doctor import CheckResult as CheckResult, Diagnosis as Diagnosis, diagnose as diagnose
from store.operations.dropping import DropReport as DropReport, drop_partition as drop_partition
from store.operations.forgetting import ForgetReport as ForgetReport, Match as Match, forget as forget
from store.operations.log_files.exporting import LogExportReport as LogExportReport, export_log as export_log
from store.operations.log_files.importing import import_log as import_log
from store.operations.part_copy import copy_rollouts as copy_rollouts, count_rollouts as count_rollouts
from store.operations.policy import RetentionPolicy as RetentionPolicy
from store.operations.redaction import RedactionReport as RedactionReport, redact as redact
from store.operations.reports import (
    ArchiveContents as ArchiveContents,
    BackupSeal as BackupSeal,
    CopyReport as CopyReport,
    PartContents as PartContents,
)
from store.operations.retention import RetentionReport as RetentionReport, remove_payload as remove_payload
from store.runtime.progress import OnProgress as OnProgress, OperationProgress as OperationProgress
