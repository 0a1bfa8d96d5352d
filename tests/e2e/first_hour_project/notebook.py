"""Execution of a notebook's cells as Jupyter does it: in a running event loop, and `await` may stand in any cell."""

import ast
import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any


async def run(cells: list[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        code = compile(cell, f"<cell {number}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)  # executes the cell; it returns a coroutine if the cell awaits
        if inspect.iscoroutine(result):
            await result


if __name__ == "__main__":
    notebook = json.loads(Path(sys.argv[1]).read_text())
    asyncio.run(run(["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]))
