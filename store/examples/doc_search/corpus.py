"""Functions of the installed standard library as documents, and the first sentences of their docstrings as queries.

The sources are parsed, not imported or run. The first sentence of the docstring is left out of the document: with it,
every ranking would find the function at once, and there would be nothing to tune.
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
"""The parts of a document, each with its own weight in the ranking."""

LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "tkinter", "site-packages"})
SHORTEST_QUERY = 4
LONGEST_SHORT_STRING = 40

# A run of capitals is one word, except that its last letter may start the next word: HTTPServer is "http" and "server".
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")
_CODE_BEFORE_COMMENT = re.compile(r"""(?:[^#'"\\]|\\.|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*#(.*)""")

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Document:
    """One function: its dotted name, its summary sentence, and the words of each of the `FIELDS`, in their order."""

    name: str
    summary: str
    words: tuple[list[str], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A sentence to search for, and the number of the document that it was taken from."""

    text: str
    answer: int


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text, split at everything that is not a letter or digit and in camelCase.

    >>> split_words("HTTPServer.serve_forever, readIntoBuffer2")
    ['http', 'server', 'serve', 'forever', 'read', 'into', 'buffer', '2']
    """
    return [word.lower() for word in _WORD.findall(text)]


def source_files(root: Path) -> list[Path]:
    """Return the sources below a directory in the order of their paths, without tests and GUI toolkits."""
    return sorted(path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(root).parts))


def read_documents(files: Iterable[Path], root: Path) -> Iterator[Document]:
    """Yield every function and method of a module or class; sources that do not parse are skipped."""
    for path in files:
        with warnings.catch_warnings():
            # Old escapes in some modules of the standard library warn on every parse, so warnings are ignored.
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
    """Return a query for each summary that has at least four words and belongs to only one function."""
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
    """Return the comments by line number.

    `tokenize` would cost four times as much as all other steps; the positions of multi-line strings are sufficient.
    """
    inside_strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or node.lineno) > node.lineno:
            inside_strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        if "#" in line and number not in inside_strings and (match := _CODE_BEFORE_COMMENT.match(line)):
            found[number] = match[1]
    return found
