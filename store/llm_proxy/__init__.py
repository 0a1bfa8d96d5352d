"""LLM proxy: agents call models through it, and every call becomes a span of their attempt."""

from store.llm_proxy.backends import Backend
from store.llm_proxy.llm_proxy import LLMProxy
from store.llm_proxy.settings import ProxySettings

__all__ = ["Backend", "LLMProxy", "ProxySettings"]
