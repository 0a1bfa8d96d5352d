"""Instrumentation of LangChain, and of the clients of OpenAI and Anthropic."""
