"""Conversion of a page to one that works without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from html.parser import HTMLParser
from typing import Final

Locate = Callable[[str], str | None]
"""Function from a path on the server to a relative path in the bundle; None if the bundle does not have the page."""

_DROPPED: Final = frozenset({"script", "noscript", "form", "dialog", "button", "input", "footer", "template"})
"""Elements that need a server or a script. They are left out with their content."""
_DROPPED_CLASSES: Final = frozenset({"actions", "slider"})
"""Classes of elements that are left out with their content."""
_VOID: Final = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_KEPT_ATTRIBUTES: Final = frozenset(
    {"class", "id", "lang", "title", "alt", "width", "height", "charset", "content", "name", "scope", "colspan"}
    | {"rowspan", "open", "role", "tabindex", "datetime", "value", "hidden", "rel", "type"}
    | {"viewbox", "preserveaspectratio", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "d", "points", "fill"}
    | {"stroke", "stroke-width", "transform", "text-anchor", "data-status", "data-role", "data-theme", "data-keys"}
)
_SPELLINGS: Final = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
"""Names of SVG attributes, which the parser returns in lower case."""
_POLICY: Final = (
    "default-src 'none'; style-src 'self' file:; img-src 'self' file:; script-src 'self' file:; base-uri 'none';"
    " form-action 'none'"
)
_ABSENT: Final = "Not in this bundle"


class StaticPage(HTMLParser):
    """Parser that writes a page again without the parts that need a server.

    Links to pages of the bundle and to its files become relative; other links become plain text with a tooltip. Only
    the attributes of a fixed list remain, so no attribute can make a request.

    Args:
        locate: the function that returns the relative path of a page or file.
        script: the relative path of the script of the page; None for none.
    """

    def __init__(self, locate: Locate, script: str | None = None) -> None:
        super().__init__(convert_charrefs=False)
        self._locate = locate
        self._script = script
        self._written: list[str] = []
        self._open_skipped: list[str] = []
        """The open elements that are left out, nested ones included."""
        self._exact_time: str | None = None
        """The time that replaces the next text, an age or a time of day, which would be different in each bundle."""

    @classmethod
    def convert(cls, html: str, locate: Locate, script: str | None = None) -> str:
        """Return the form of a page that works in the bundle."""
        parser = cls(locate, script)
        parser.feed(html)
        parser.close()
        return "".join(parser._written)

    def handle_decl(self, decl: str) -> None:
        self._written.append(f"<!{decl}>")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if self._open_skipped or self._is_left_out(tag, values):
            if tag not in _VOID:
                self._open_skipped.append(tag)
            return
        self._written.append(self._start(tag, values))
        if tag == "head":
            self._written.append(f'\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">')
        if values.get("data-time") in {"ago", "clock"}:
            self._exact_time = values.get("title")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._open_skipped and not self._is_left_out(tag, dict(attrs)):
            self._written.append(self._start(tag, dict(attrs)).removesuffix(">") + "/>")

    def handle_endtag(self, tag: str) -> None:
        if self._open_skipped:
            while self._open_skipped and self._open_skipped.pop() != tag:
                pass
            return
        if tag == "body" and self._script is not None:
            self._written.append(f'<script src="{self._script}"></script>\n')
        if tag not in _VOID:
            self._written.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._exact_time is not None:
            data, self._exact_time = escape(self._exact_time), None
        self._write(data)

    def handle_entityref(self, name: str) -> None:
        self._write(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._write(f"&#{name};")

    def _write(self, text: str) -> None:
        if not self._open_skipped:
            self._written.append(text)

    def _is_left_out(self, tag: str, values: Mapping[str, str | None]) -> bool:
        if tag == "meta":
            return values.get("name") not in {None, "viewport", "color-scheme"} or "http-equiv" in values
        if tag == "link":
            return values.get("rel") not in {"stylesheet", "icon"}
        return tag in _DROPPED or not _DROPPED_CLASSES.isdisjoint((values.get("class") or "").split())

    def _start(self, tag: str, values: Mapping[str, str | None]) -> str:
        attributes = {
            name: value for name, value in values.items() if name in _KEPT_ATTRIBUTES or name.startswith("aria-")
        }
        for name in ("href", "src"):
            target = values.get(name)
            if target is None:
                continue
            location = target if target.startswith("#") else self._locate(target)
            if location is not None:
                attributes[name] = location
            else:
                attributes["title"] = _ABSENT
                attributes["class"] = f"{values.get('class') or ''} absent".strip()
        written = "".join(
            f" {_SPELLINGS.get(name, name)}" if value is None else f' {_SPELLINGS.get(name, name)}="{escape(value)}"'
            for name, value in attributes.items()
        )
        return f"<{tag}{written}>"
