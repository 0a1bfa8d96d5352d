"""Export of a store's spans to Parquet, and the same rows written by pyarrow alone; prints a JSON object.

`python -m tests.benchmarks.exports_side URL DIRECTORY`
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from pathlib import Path

from store import open_store
from store.exports import ExportReport, export_store
from store.exports.formats.arrow import arrow
from store.exports.formats.parquet import parquet_writer
from store.exports.tables import tables_of

ROUNDS = 3


async def _export(url: str, directory: Path) -> ExportReport:
    async with await open_store(url, read_only=True) as store:
        return await export_store(store, "parquet", directory, tables=["spans"], overwrite=True)


def _write_alone(directory: Path, target: Path) -> tuple[float, float]:
    """Write the exported row groups with the settings of the export, without reading them.

    Return the seconds, and the seconds of processor time.
    """
    (spans,) = tables_of(["spans"])
    seconds = cpu = 0.0
    for number, path in enumerate(sorted((directory / "spans").iterdir())):
        file = arrow("pyarrow.parquet").ParquetFile(path)
        groups = [file.read_row_group(place).combine_chunks() for place in range(file.num_row_groups)]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        with parquet_writer(target / f"{number}.parquet", spans, file.schema_arrow) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=group.num_rows)
        seconds += time.perf_counter() - begun
        cpu += time.process_time() - cpu_begun
    return seconds, cpu


def main(url: str, directory: str, target: str) -> None:
    """Measure both ways in turn, and print the shortest times."""
    gc.set_threshold(200_000, 20, 50)  # as the command `rollbook` does
    exports: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    figures: dict[str, float] = {}
    for _ in range(ROUNDS):
        begun = time.process_time()
        report = asyncio.run(_export(url, Path(directory)))
        exports.append((report.seconds, time.process_time() - begun))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures = {"rows": report.rows["spans"], "size": report.size_bytes, "peak": figures.get("peak", peak)}
        alone.append(_write_alone(Path(directory), Path(target)))
    figures |= {
        "seconds": min(seconds for seconds, _ in exports),
        "cpu": min(cpu for _, cpu in exports),
        "alone": min(seconds for seconds, _ in alone),
        "alone_cpu": min(cpu for _, cpu in alone),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
