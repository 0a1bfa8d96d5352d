"""The command line, `rollbook`: looks at a store, proves it, and runs the demo. It decides nothing of its own."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command named in `sys.argv` and exit with its code, as `store.cli.errors` lists them."""
    from store.cli.app import app

    app(prog_name="rollbook")
    raise SystemExit(0)
