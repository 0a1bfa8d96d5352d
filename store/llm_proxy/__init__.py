"""LLM proxy: agents call models through the proxy, which records every call as a span.

The module of a public name is imported at the first use of the name. So a program that only refers to the proxy does
not import the server.
"""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
