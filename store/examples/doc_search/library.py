"""What a search needs, made once and kept in a file: the names of all documents, the queries, and the index.

The file holds JSON and plain numbers, no code, and is named after what it was made from: another Python, or a changed
source, gives another file.
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
    """The documents by number (names and index) and the queries about them."""

    names: list[str]
    queries: list[Query]
    index: Index

    @classmethod
    def read(cls, root: Path) -> Library:
        """Parse the sources below a directory and index them; some seconds for the standard library."""
        documents = list(read_documents(source_files(root), root))
        index = Index.build((document.words for document in documents), len(FIELDS))
        return cls([document.name for document in documents], choose_queries(documents), index)

    def save(self, path: Path) -> None:
        """Write the library; a reader sees all of it or none."""
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
        """Read a library that `save` wrote.

        Raises:
            OSError: there is no such file, or it cannot be read.
            ValueError: it is not a library, or not all of one.
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
    """Return the library of some sources and the file it is kept in, made now if the directory has none yet.

    Args:
        directory: where to keep it; created if missing.
        root: below which the sources are; None for the standard library of the Python that runs this.
        on_reading: called before the sources are parsed, which takes some seconds.

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
    """Return where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook"


def _fingerprint(files: Sequence[Path]) -> str:
    facts = hashlib.sha256(f"{_FORM} {sys.version} {sys.byteorder}\n".encode())
    for path in files:
        state = path.stat()
        facts.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    # A change in how documents are read must not meet an index from before.
    for module in ("corpus.py", "bm25f.py"):
        facts.update(Path(__file__).with_name(module).read_bytes())
    return facts.hexdigest()[:16]
