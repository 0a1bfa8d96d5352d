"""Markdown of messages as HTML. Messages are untrusted: HTML in them is text, and images are never loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

LONGEST: Final = 20_000
"""The maximum number of characters of a text that is rendered; a longer text is shown as it is."""
MOST_MARKS: Final = 1_500
"""The maximum number of characters with a meaning in a text that is rendered. Many of them may take seconds."""
MOST_IN_ALL: Final = 200_000
"""The maximum number of characters that are rendered for one page."""
_MARKS: Final = "[]<>`*_|!&\\"
_JSON: Final = re.compile(r"\s*(?:\{|\[\s*[\[{\"])")
_LINKS: Final = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_HEADINGS: Final = {"h1": "h4", "h2": "h4", "h3": "h5", "h4": "h5", "h5": "h6", "h6": "h6"}
"""The levels of headings in messages, which are below those of the page."""


class _Renderer(RendererHTML):
    def link_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].attrSet("rel", "noopener noreferrer")
        return self.renderToken(tokens, index, options, env)

    def heading_open(self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
        tokens[index].tag = _HEADINGS[tokens[index].tag]
        return self.renderToken(tokens, index, options, env)

    heading_close = heading_open

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # The language comes from the message, so it does not become a class of the page.
        tokens[idx].info = ""
        return super().fence(tokens, idx, options, env)


@cache
def _parser() -> MarkdownIt:
    # Without the rule for images, the address of an image becomes a link.
    options: dict[str, Any] = {"html": False, "linkify": False, "breaks": True}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable("table").disable("image")
    parser.validateLink = lambda url: _LINKS.match(url) is not None
    return parser


@dataclass(slots=True)
class Prose:
    """The Markdown of one page."""

    left: int = MOST_IN_ALL
    """The number of characters that may still be rendered."""

    def render(self, text: str) -> Markup | None:
        """Return the HTML of a text; None for JSON, and for a text that would take too long."""
        if len(text) > min(self.left, LONGEST) or _JSON.match(text):
            return None
        if sum(map(text.count, _MARKS)) > MOST_MARKS:
            return None
        self.left -= len(text)
        return Markup(_parser().render(text))  # noqa: S704 - the parser escapes the text
