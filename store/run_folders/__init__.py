"""Run folders: a run's events, checkpoints and artifacts as files, with import, export and mirror."""

from store.run_folders.exporting import export_run_folder
from store.run_folders.importing import import_run_folder, import_runs
from store.run_folders.mirroring import Mirror
from store.run_folders.records import ImportReport, Warned

__all__ = ["ImportReport", "Mirror", "Warned", "export_run_folder", "import_run_folder", "import_runs"]
