"""Instrumentation of SDKs of model providers and of LangChain."""
