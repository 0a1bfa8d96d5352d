"""Cached library of a search: the names of all documents, the queries, and the index.

The file contains JSON and plain numbers, no code. Its name depends on its sources: another Python or a changed source
gives another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.examples.doc_search.bm25f import Index
from store.examples.doc_search.corpus import FIELDS, Query, choose_queries, read_documents, source_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORM = 1


@dataclass(frozen=True, slots=True)
class Library:
    """The documents by number (names and index), and the queries about them."""

    names: list[str]
    queries: list[Query]
    index: Index

    @classmethod
    def read(cls, root: Path) -> Library:
        """Parse the sources below a directory and index them; this takes seconds for the standard library."""
        documents = list(read_documents(source_files(root), root))
        index = Index.build((document.words for document in documents), len(FIELDS))
        return cls([document.name for document in documents], choose_queries(documents), index)

    def save(self, path: Path) -> None:
        """Write the library atomically."""
        index = self.index
        arrays = (*index.lengths, index.starts, index.documents, index.counts, index.spread)
        head = {
            "form": _FORM,
            "names": self.names,
            "queries": [(query.text, query.answer) for query in self.queries],
            "words": list(index.words),
            "arrays": [len(numbers) for numbers in arrays],
        }
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                file.write(json.dumps(head).encode() + b"\n")
                for numbers in arrays:
                    numbers.tofile(file)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink()
                raise

    @classmethod
    def load(cls, path: Path) -> Library:
        """Read a library that `save` has written.

        Raises:
            OSError: the file does not exist or cannot be read.
            ValueError: the file is not a complete library.
        """
        with path.open("rb") as file:
            head: dict[str, Any] = json.loads(file.readline())
            if head.get("form") != _FORM:
                raise ValueError(f"{path} is not a library of form {_FORM}")
            arrays: list[array[int]] = []
            for length in head["arrays"]:
                numbers = array("I")
                try:
                    numbers.fromfile(file, length)
                except (EOFError, ValueError):
                    raise ValueError(f"{path} ends too early") from None
                arrays.append(numbers)
        *lengths, starts, documents, counts, spread = arrays
        words = {word: place for place, word in enumerate(head["words"])}
        queries = [Query(text, answer) for text, answer in head["queries"]]
        return cls(head["names"], queries, Index(words, tuple(lengths), starts, documents, counts, spread))


def open_library(
    directory: Path, *, root: Path | None = None, on_reading: Callable[[], None] = lambda: None
) -> tuple[Library, Path]:
    """Return the library of some sources and its file, which is created if it does not exist.

    Args:
        directory: the directory of the file; created if missing.
        root: the directory of the sources; None for the standard library of the running Python.
        on_reading: function that is called before the sources are parsed, which takes seconds.

    Raises:
        OSError: the directory cannot be written.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    path = directory / f"doc-search-{_fingerprint(source_files(root))}.library"
    try:
        return Library.load(path), path
    except (OSError, ValueError):
        on_reading()
    directory.mkdir(parents=True, exist_ok=True)
    library = Library.read(root)
    library.save(path)
    return library, path


def cache_directory() -> Path:
    """Return the user's cache directory of this program."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook"


def _fingerprint(files: Sequence[Path]) -> str:
    facts = hashlib.sha256(f"{_FORM} {sys.version} {sys.byteorder}\n".encode())
    for path in files:
        state = path.stat()
        facts.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    # A change of the code that reads documents must invalidate older files, so the code is part of the hash.
    for module in ("corpus.py", "bm25f.py"):
        facts.update(Path(__file__).with_name(module).read_bytes())
    return facts.hexdigest()[:16]
