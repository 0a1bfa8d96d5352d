"""Rendering of pages as HTML and JSON, and the static files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, cast

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from pydantic import BaseModel

from store.dashboard.page import PageContent
from store.dashboard.request import PageRequest
from store.dashboard.views.formats import FILTERS

_TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@cache
def _environment() -> Environment:
    # Any value may be user input, so everything is escaped, except `Markup` objects that this program creates.
    environment = Environment(
        loader=PackageLoader("store.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    cast("dict[str, Any]", environment.globals)["static"] = static_url
    return environment


def html(page: PageContent, request: PageRequest, **more: Any) -> bytes:
    """Return a page as HTML; `more` holds the values of the layout that all pages share."""
    values = {**page.values, **page.hidden}
    template = _environment().get_template(page.template)
    return template.render(values, request=request, title=page.title, **more).encode()


def bare(template: str, **values: Any) -> bytes:
    """Return a page without the shared layout, for visitors who have no access."""
    return _environment().get_template(template).render(values).encode()


def json(page: PageContent) -> bytes:
    """Return the values of a page as JSON."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(dict(page.values), default=_plain, option=options)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, MappingProxyType):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, (set, frozenset)):
        return sorted(cast("frozenset[Any]", value))
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} cannot be a value of a page")


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    static_files: dict[str, tuple[bytes, str]] = {}
    for entry in files("store.dashboard").joinpath("static").iterdir():
        suffix = entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            static_files[entry.name] = (entry.read_bytes(), _TYPES[suffix])
    return static_files


@cache
def version() -> str:
    """Return a hash of all static files. It is a part of each file's path, so browsers never need to reload a file."""
    digest = hashlib.sha256()
    for name, (body, _) in sorted(_files().items()):
        digest.update(name.encode() + b"\0" + body)
    return digest.hexdigest()[:12]


def static_url(name: str) -> str:
    """Return the path of a static file.

    Raises:
        LookupError: a template names a file that does not exist.
    """
    if name not in _files():
        raise LookupError(name)
    return f"/ui/static/{version()}/{name}"


def stylesheets() -> list[str]:
    """Return the names of the style sheets among the static files."""
    return sorted(name for name in _files() if name.endswith(".css"))


def static_file(name: str) -> tuple[bytes, str] | None:
    """Return the content and the media type of a static file, or None if there is no such file."""
    return _files().get(name)
