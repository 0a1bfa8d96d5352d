"""Library of a search engine: the names of all documents, the queries, and the index. The library is cached in a file.

The file contains only JSON and plain numbers, so loading a file never executes code. The documents are made from source
files. The name of the cache file depends on the source files and on the Python version.
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

from store.examples.doc_search.bm25f import WordIndex
from store.examples.doc_search.corpus import FIELDS, Query, choose_queries, read_documents, source_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORM = 1


@dataclass(frozen=True, slots=True)
class Library:
    """The names and the index of the documents, and the queries about the documents.

    The number of a document is its position in `names`.
    """

    names: list[str]
    queries: list[Query]
    index: WordIndex

    @classmethod
    def read(cls, root: Path) -> Library:
        """Parse and index the source files below a directory. For the standard library, this takes several seconds."""
        documents = list(read_documents(source_files(root), root))
        index = WordIndex.build((document.words for document in documents), len(FIELDS))
        return cls([document.name for document in documents], choose_queries(documents), index)

    def save(self, path: Path) -> None:
        """Write the library to a file atomically."""
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
        """Return the library in a file that `save` has written.

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
        words = {word: number for number, word in enumerate(head["words"])}
        queries = [Query(text, answer) for text, answer in head["queries"]]
        return cls(head["names"], queries, WordIndex(words, tuple(lengths), starts, documents, counts, spread))


def open_library(
    directory: Path, *, root: Path | None = None, on_reading: Callable[[], None] = lambda: None
) -> tuple[Library, Path]:
    """Return the library of the source files below a directory, and the path of the cache file.

    If the cache file does not exist or is not valid, the source files are parsed and the cache file is written.

    Args:
        directory: the directory of the cache file. A missing directory is created.
        root: the directory of the source files; None for the standard library of the running Python.
        on_reading: function that is called before the source files are parsed, because parsing takes several seconds.

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
    """Return the directory for cache files of this program in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook"


def _fingerprint(files: Sequence[Path]) -> str:
    hasher = hashlib.sha256(f"{_FORM} {sys.version} {sys.byteorder}\n".encode())
    for path in files:
        state = path.stat()
        hasher.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    # After a change of the code that reads or indexes documents, older cache files must not be used. So the hash
    # includes the code.
    for module in ("corpus.py", "bm25f.py"):
        hasher.update(Path(__file__).with_name(module).read_bytes())
    return hasher.hexdigest()[:16]
