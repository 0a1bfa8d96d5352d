"""Dataset cards: the file README.md of a folder that Hugging Face's `datasets` loads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from store.exports.manifest import Manifest
from store.exports.schema import Kind, Table, TableColumn

_TYPES: Final[Mapping[Kind, str]] = {
    "text": "string",
    "int64": "int64",
    "float64": "float64",
    "bool": "bool",
    "timestamp": "timestamp[us, tz=UTC]",
    "json": "json",
}


def dataset_card(
    manifest: Manifest, tables: Sequence[Table], paths: Mapping[str, str], lists: Collection[str] = ()
) -> str:
    """Return the text of a dataset card.

    Args:
        manifest: the manifest of the finished export.
        tables: the tables of the export. The card leaves out tables and splits without rows, because `datasets` refuses
            them.
        paths: for each table, a glob pattern for the files of a split, with `{split}` for the name of the split.
        lists: the names of columns whose JSON is a list. `datasets` returns them as lists of objects.
    """
    splits: dict[str, list[str]] = {}
    for file in manifest.files:
        of_table = splits.setdefault(file.table, [])
        if file.rows and file.split not in of_table:
            of_table.append(file.split)
    filled = [table for table in tables if splits.get(table.name)]
    rows = manifest.rows()
    lines = ["---"]
    if filled:
        lines.append("configs:")
        for place, table in enumerate(filled):
            lines += [f"- config_name: {table.name}", *(["  default: true"] if place == 0 else []), "  data_files:"]
            for split in splits[table.name]:
                lines += [f"  - split: {split}", f"    path: {paths[table.name].format(split=split)}"]
        lines.append("dataset_info:")
        for table in filled:
            lines += [f"- config_name: {table.name}", "  features:"]
            for column in table.columns:
                lines += [f"  - name: {column.name}", f"    {_type(column, lists)}"]
    origin = f"the Rollbook store `{manifest.store_id}`, at position {manifest.position} of its log"
    version = f"Version {manifest.schema_version} of the tables."
    lines += ["---", "", "# Rollouts of an agent", "", f"{manifest.rollouts:,} rollouts of {origin}. {version}"]
    for table in filled:
        lines += ["", f"## {table.name}", "", f"{table.description} {rows[table.name]:,} rows.", ""]
        lines += ["| column | type | content |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.kind} | {column.description} |" for column in table.columns]
    return "\n".join(lines) + "\n"


def _type(column: TableColumn, lists: Collection[str]) -> str:
    if column.kind in {"int64s", "texts"}:
        return "list: int64" if column.kind == "int64s" else "list: string"
    return "list: json" if column.name in lists else f"dtype: {_TYPES[column.kind]}"
