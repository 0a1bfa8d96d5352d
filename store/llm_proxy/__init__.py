"""LLM proxy: agents call models through the proxy, which records every call as a span.

The module of a public name is imported when the name is first used, so that a program that only names the proxy does
not import its server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.llm_proxy.backends import Backend
    from store.llm_proxy.llm_proxy import LLMProxy
    from store.llm_proxy.settings import ProxySettings

_LATE = {
    "Backend": "store.llm_proxy.backends",
    "LLMProxy": "store.llm_proxy.llm_proxy",
    "ProxySettings": "store.llm_proxy.settings",
}

__all__ = ["Backend", "LLMProxy", "ProxySettings"]

# If a type checker saw this function, it would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value
