"""The LLM proxy: agents call models through it, and every call becomes a span of their attempt."""

from store.training.proxy.backends import Backend
from store.training.proxy.llm_proxy import LLMProxy
from store.training.proxy.settings import ProxySettings

__all__ = ["Backend", "LLMProxy", "ProxySettings"]
