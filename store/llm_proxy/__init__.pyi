from store.llm_proxy.backends import Backend as Backend
from store.llm_proxy.llm_proxy import LLMProxy as LLMProxy
from store.llm_proxy.settings import ProxySettings as ProxySettings
