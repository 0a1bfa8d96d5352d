"""The format hf: Parquet files with a dataset card, for `datasets.load_dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from store.exports.formats.cards import dataset_card
from store.exports.formats.parquet import Parquet
from store.exports.manifest import CARD_NAME, Manifest, replace_file
from store.exports.schema import Table


class HuggingFace(Parquet):
    """Parquet files and a dataset card with a configuration for each table.

    Raises:
        Invalid: pyarrow is not installed.
    """

    name: ClassVar[str] = "hf"
    default_split: ClassVar[str] = "train"
    writes_empty_tables: ClassVar[bool] = False

    def finish(self, directory: Path, manifest: Manifest, tables: Sequence[Table]) -> None:
        paths = {table.name: f"{table.name}/{{split}}-*.{self.suffix}" for table in tables}
        replace_file(directory / CARD_NAME, dataset_card(manifest, tables, paths).encode())
