"""A proxy of model calls, as a user writes it."""

from typing import assert_type

import rollbook
from rollbook.training import Backend, LLMProxy, ProxySettings


async def main(model_url: str) -> str:
    backend = Backend("vllm-0", model_url, models=["policy"], version="step-0", supports_token_ids=True)
    async with (
        rollbook.open_store("memory://") as opened,
        LLMProxy(store=opened, backends=[backend], settings=ProxySettings(num_retries=1)) as proxy,
    ):
        assert_type(proxy, LLMProxy)
        await opened.add_resources({"main_llm": proxy.as_resource()})
        started = await opened.start_rollout({"question": "6 * 7?"})
        latest = await opened.get_latest_resources()
        assert latest is not None
        llm = latest.resources["main_llm"]
        assert isinstance(llm, rollbook.ProxyLLM)
        return llm.get_base_url(started.rollout_id, started.attempt.attempt_id)
