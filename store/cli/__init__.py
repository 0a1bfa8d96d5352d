"""The command-line program `rollbook`, which inspects, verifies and serves stores.

The work of the commands is done by the other packages of `store`.
"""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command in `sys.argv`, and exit with one of the codes that `store.cli.errors` lists."""
    from store.cli.app import app

    app(prog_name="rollbook")
    raise SystemExit(0)
