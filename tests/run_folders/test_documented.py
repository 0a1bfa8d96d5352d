"""Statements of docs/run-folders.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from store.run_folders import names, reading
from store.run_folders.mirroring import PLACE_FILE
from store.run_folders.records import ORPHANED
from tests.run_folders.folder_samples import Written

PAGE = (Path(__file__).parents[2] / "docs" / "run-folders.md").read_text()


@pytest.mark.slow
def test_documented_example_prints_the_documented_output(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    output = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_the_names_on_the_page_are_those_of_the_code() -> None:
    for name in (names.DIGEST, names.LATEST, f"{names.META}.json", f"{names.EVENTS}.jsonl", f"{names.SIDECAR}.json"):
        assert name in PAGE
    assert PLACE_FILE in PAGE
    assert ORPHANED in PAGE
    assert re.findall(r"^\| (flow|legacy|flat) \|", PAGE, re.MULTILINE) == ["flow", "legacy", "flat"]


def test_the_fields_of_meta_on_the_page_are_those_of_a_folder() -> None:
    fields = PAGE.partition("`run_meta.json` holds ")[2].partition("; if a store")[0]
    assert re.findall(r"`(\w+)`", fields) == list(Written().meta())


def test_the_largest_file_on_the_page_is_that_of_the_code(tmp_path: Path) -> None:
    assert "more than 4 MiB" in PAGE
    folder = Written(files={"RIG/fits.bin": b"x" * 4 * 2**20, "RIG/large.bin": b"x" * (4 * 2**20 + 1)}).write(tmp_path)
    (place,) = reading.places_of(folder)
    read = reading.read(place)
    assert list(read.files) == ["RIG/fits.bin"]
    assert [warning.file for warning in read.warnings] == ["RIG/large.bin"]
