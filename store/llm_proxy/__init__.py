"""LLM proxy: agents call models through the proxy, which records every call as a span.

The module of a public name is imported when the name is first used, so that a program that only names the proxy does
not import its server.
"""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
