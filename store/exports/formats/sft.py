"""The format sft: conversations as JSON lines with a dataset card, for fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from store.errors import Invalid
from store.exports.formats.cards import dataset_card
from store.exports.formats.jsonl import JSONLines
from store.exports.manifest import CARD_NAME, Manifest, replace_file
from store.exports.schema import Table
from store.exports.tables import CONVERSATIONS


class FineTuning(JSONLines):
    """Files `SPLIT-PART.jsonl` with one conversation per line."""

    name: ClassVar[str] = "sft"
    default_split: ClassVar[str] = "train"
    writes_empty_tables: ClassVar[bool] = False

    def tables(self, names: Sequence[str] | None) -> tuple[Table, ...]:
        if names not in (None, [CONVERSATIONS.name], (CONVERSATIONS.name,)):
            raise Invalid("tables", f"the format {self.name} has one table, {CONVERSATIONS.name}; leave the option out")
        return (CONVERSATIONS,)

    def path(self, table: Table, split: str, part: int) -> str:
        del table  # the only one
        return f"{split}-{part:05d}.{self.suffix}"

    def finish(self, directory: Path, manifest: Manifest, tables: Sequence[Table]) -> None:
        paths = {CONVERSATIONS.name: f"{{split}}-*.{self.suffix}"}
        replace_file(directory / CARD_NAME, dataset_card(manifest, tables, paths, {"messages", "tools"}).encode())
