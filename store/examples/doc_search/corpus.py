"""Functions of the installed standard library as documents, and the first sentences of their docstrings as queries.

The sources are parsed, but not imported or executed. A document does not contain the first sentence of the function's
docstring. Otherwise, every ranking would find the function of a query at once, and tuning could improve nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FIELDS = ("name", "class", "module", "arguments", "docstring", "body", "comments")
"""The names of the parts of a document. Each part has its own weight in a ranking."""

LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "tkinter", "site-packages"})
"""The names of directories whose files are not read."""
SHORTEST_QUERY = 4
"""The minimum number of words of a query."""
LONGEST_SHORT_STRING = 40
"""The maximum length of string constants that are part of a document."""

# Several capitals in sequence are one word, but the last capital may begin the next word: HTTPServer gives "http" and
# "server".
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")
_CODE_BEFORE_COMMENT = re.compile(r"""(?:[^#'"\\]|\\.|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*#(.*)""")

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Document:
    """One function of the standard library."""

    name: str
    """The dotted name of the function."""
    summary: str
    """The first sentence of the docstring."""
    words: tuple[list[str], ...]
    """The words of each of the `FIELDS`, in the order of `FIELDS`."""


@dataclass(frozen=True, slots=True)
class Query:
    """A sentence to search for, and the number of the document from which the sentence was taken."""

    text: str
    answer: int


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case.

    Every character that is not an ASCII letter or digit separates words. Numbers, and the parts of names in camelCase,
    are words of their own.

    >>> split_words("HTTPServer.serve_forever, readIntoBuffer2")
    ['http', 'server', 'serve', 'forever', 'read', 'into', 'buffer', '2']
    """
    return [word.lower() for word in _WORD.findall(text)]


def source_files(root: Path) -> list[Path]:
    """Return the Python files below a directory, sorted by path, except for tests and GUI toolkits."""
    return sorted(path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(root).parts))


def read_documents(files: Iterable[Path], root: Path) -> Iterator[Document]:
    """Yield a document for every function of a module and every method of a class.

    Functions inside other functions are not included. Files that cannot be parsed are skipped.
    """
    for path in files:
        with warnings.catch_warnings():
            # Some modules of the standard library contain invalid escape sequences, for which the parser warns.
            warnings.simplefilter("ignore")
            try:
                source = path.read_bytes()
                tree = ast.parse(source)
            except (OSError, SyntaxError, ValueError):
                continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        comments = _comments(source.decode("utf-8", "replace").splitlines(), tree)
        for function, classes in _functions(tree, ()):
            yield _document(function, classes, module, comments)


def choose_queries(documents: list[Document]) -> list[Query]:
    """Return a query for each summary that has at least four words and is the summary of only one function."""
    occurrences = Counter(document.summary for document in documents)
    return [
        Query(document.summary, number)
        for number, document in enumerate(documents)
        if occurrences[document.summary] == 1 and len(split_words(document.summary)) >= SHORTEST_QUERY
    ]


def _functions(node: ast.AST, classes: tuple[str, ...]) -> Iterator[tuple[Function, tuple[str, ...]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, type_of_function):
            yield child, classes
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, (*classes, child.name))
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _functions(child, classes)


def _document(function: Function, classes: tuple[str, ...], module: str, comments: dict[int, str]) -> Document:
    summary, rest = _split_docstring(function)
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    last_line = function.end_lineno or function.lineno
    remarks = (comments[line] for line in range(function.lineno, last_line + 1) if line in comments)
    texts = (
        function.name,
        " ".join(classes),
        module,
        " ".join(argument.arg for argument in named if argument),
        rest,
        " ".join(_names_and_strings(function)),
        " ".join(remarks),
    )
    name = ".".join((module, *classes, function.name))
    return Document(name, summary, tuple(split_words(text) for text in texts))


def _split_docstring(function: Function) -> tuple[str, str]:
    docstring = inspect.cleandoc(ast.get_docstring(function, clean=False) or "")
    summary, *rest = _SENTENCE_END.split(docstring, maxsplit=1)
    return " ".join(summary.split()), "".join(rest)


def _names_and_strings(function: Function) -> Iterator[str]:
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    yield name
                case ast.Constant(value=str(text)) if len(text) <= LONGEST_SHORT_STRING:
                    yield text
                case _:
                    pass


def _comments(lines: list[str], tree: ast.Module) -> dict[int, str]:
    """Return the comments by line number. Lines that belong to a multi-line string are skipped.

    The module `tokenize` would be exact, but would take four times as long as all other steps together.
    """
    inside_strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or node.lineno) > node.lineno:
            inside_strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comments: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        if "#" in line and number not in inside_strings and (match := _CODE_BEFORE_COMMENT.match(line)):
            comments[number] = match[1]
    return comments
