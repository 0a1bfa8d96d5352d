"""The tables of docs/export.md: `python -m tests.exports.documented` writes them anew."""

from __future__ import annotations

from pathlib import Path

from store.exports.tables import CONVERSATIONS, TABLES
from store.exports.views import VIEWS

PAGE = Path(__file__).parents[2] / "docs/export.md"
_BEGIN, _END = "<!-- tables -->\n", "<!-- /tables -->\n"


def described() -> str:
    """Return the descriptions of all tables and views as Markdown."""
    lines: list[str] = []
    for table in (*TABLES, CONVERSATIONS, *VIEWS):
        of = " The only table of `sft`." if table is CONVERSATIONS else ""
        of = " A view, for statements in [SQL](sql.md)." if table in VIEWS else of
        lines += ["", f"### {table.name}", "", f"{table.description}{of}", ""]
        lines += ["| column | type | content |", "|---|---|---|"]
        for column in table.columns:
            kind = column.kind if column.is_nullable else f"{column.kind}, never null"
            lines.append(f"| `{column.name}` | {kind} | {column.description} |")
    return "\n".join([*lines, "", ""])


def in_page() -> str:
    """Return the descriptions in the page."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{described()}{_END}{rest.partition(_END)[2]}")
