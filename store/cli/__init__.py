"""The command-line program `rollbook`, which inspects, verifies and serves stores.

The other packages of `store` do the work of the commands.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from store.cli import interrupts

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command in `sys.argv`, and exit with one of the codes that `store.cli.errors` lists."""
    interrupts.end_process()
    # The imports create about 100,000 objects that are never freed, so collecting garbage meanwhile frees nothing.
    gc.set_threshold(200_000, 20, 50)
    from store.cli.app import app
    from store.cli.output import streams

    streams.prepare()
    try:
        app(prog_name="rollbook")
    except SystemExit as end:
        if not end.code and "store.operations.receipts" in sys.modules:
            from store.operations.receipts import leave

            leave()
        raise
    except KeyboardInterrupt:
        # The interrupt reached the program outside a command, for example while the refusal of an option was printed.
        interrupts.end_process()
        print(interrupts.MESSAGE, file=sys.stderr)
        raise SystemExit(interrupts.INTERRUPTED) from None
    finally:
        interrupts.end_process()
        # Python runs the garbage collector several times at exit. `freeze` excludes all current objects from these
        # runs, which otherwise take longer than many commands.
        gc.freeze()
    raise SystemExit(0)
