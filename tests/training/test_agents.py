"""Classes and functions are agents in the forms of Agent-lightning 0.3."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
from typing import Any

import pytest

from store.errors import Invalid
from store.models import LLM, Attempt, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout
from store.training import LitAgent, UnsupportedSignature, llm_rollout, prompt_rollout, rollout

PLAIN = LLM(endpoint="http://h/v1", model="plain", sampling_parameters={"temperature": 0})
PROXIED = ProxyLLM(endpoint="http://h/v1", model="proxied", api_key="k", sampling_parameters={"top_p": 1})
PROMPT = PromptTemplate(template="Say {x}", engine="f-string")
BARE = Rollout(rollout_id="ro-1", input="t", start_time=0.0)
ATTEMPTED = AttemptedRollout(
    **BARE.model_dump(), attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0)
)


class Sync(LitAgent[str]):
    def rollout(self, task: str, resources: NamedResources, rollout: Rollout) -> Any:
        return f"{task} {sorted(resources)} {rollout.rollout_id}"


class Async(LitAgent[str]):
    async def rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> Any:
        return f"{task} async"


class Split(LitAgent[str]):
    async def training_rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> Any:
        return "training"


def test_an_agent_is_async_if_it_overrides_an_async_method() -> None:
    assert [kind().is_async() for kind in (LitAgent[Any], Sync, Async, Split)] == [False, False, True, True]


async def test_the_methods_of_both_modes_call_rollout() -> None:
    for method in (Sync().training_rollout, Sync().validation_rollout):
        assert method("t", {"m": PLAIN}, BARE) == "t ['m'] ro-1"
    for method in (Async().training_rollout_async, Async().validation_rollout_async):
        assert await method("t", {}, BARE) == "t async"


async def test_an_agent_that_overrides_nothing_says_so() -> None:
    with pytest.raises(NotImplementedError, match="overrides neither"):
        LitAgent[Any]().training_rollout("t", {}, BARE)
    with pytest.raises(NotImplementedError, match="overrides neither"):
        await LitAgent[Any]().validation_rollout_async("t", {}, BARE)


def test_agent_without_runner_or_trainer_explains_how_to_get_one() -> None:
    with pytest.raises(ValueError, match=r"runner\.init"):
        _ = Sync().runner
    with pytest.raises(ValueError, match=r"runner\.init"):
        Sync().get_tracer()
    with pytest.raises(ValueError, match=r"Trainer\.fit"):
        Sync().get_trainer()


@pytest.mark.slow
def test_an_agent_keeps_neither_its_runner_nor_its_trainer_alive() -> None:
    class Owner:
        pass

    agent, owner = Sync(), Owner()
    agent.set_trainer(owner)
    assert agent.trainer is owner
    del owner
    gc.collect()
    with pytest.raises(ValueError, match="no trainer"):
        _ = agent.trainer


def test_agent_function_gets_its_parameters_by_name() -> None:
    @rollout
    def agent(task: str, prompt_template: PromptTemplate, llm: LLM, rollout: Rollout, resources: Any) -> Any:
        return task, prompt_template, llm, rollout.rollout_id, sorted(resources)

    available: NamedResources = {"p": PROMPT, "m": PLAIN}
    assert agent.rollout("t", available, BARE) == ("t", PROMPT, PLAIN, "ro-1", ["m", "p"])
    assert not agent.is_async()


async def test_a_coroutine_function_is_an_async_agent() -> None:
    @llm_rollout
    async def agent(task: str, llm: LLM) -> str:
        await asyncio.sleep(0)
        return llm.model

    assert agent.is_async()
    assert await agent.rollout_async("t", {"m": PLAIN}, BARE) == "plain"
    with pytest.raises(RuntimeError, match="call rollout_async"):
        agent.rollout("t", {"m": PLAIN}, BARE)


async def test_the_wrong_entry_of_a_sync_function_says_so() -> None:
    @llm_rollout
    def agent(task: str, llm: LLM) -> None: ...

    with pytest.raises(RuntimeError, match="call rollout"):
        await agent.rollout_async("t", {"m": PLAIN}, BARE)


def test_a_decorated_function_is_still_the_function() -> None:
    @prompt_rollout()
    def agent(task: str, prompt_template: PromptTemplate) -> str:
        """Say something."""
        return prompt_template.format(x=task)

    assert agent("hello", PROMPT) == "Say hello"
    assert (getattr(agent, "__name__", ""), agent.__doc__) == ("agent", "Say something.")


def test_a_proxys_model_comes_with_the_url_of_the_attempt() -> None:
    @llm_rollout
    def stripped(task: str, llm: LLM) -> LLM:
        return llm

    @llm_rollout(strip_proxy=False)
    def plain(task: str, llm: LLM) -> LLM:
        return llm

    resources: NamedResources = {"m": PROXIED}
    assert stripped.rollout("t", resources, ATTEMPTED) == LLM(
        endpoint="http://h/rollout/ro-1/attempt/at-1/v1", model="proxied", api_key="k", sampling_parameters={"top_p": 1}
    )
    assert plain.rollout("t", resources, ATTEMPTED) is PROXIED
    with pytest.raises(ValueError, match="has no attempt"):
        stripped.rollout("t", resources, BARE)


def test_of_several_resources_the_first_is_used_with_a_warning(caplog: Any) -> None:
    @llm_rollout
    def agent(task: str, llm: LLM) -> str:
        return llm.model

    assert agent.rollout("t", {"p": PROMPT, "a": PLAIN, "b": PROXIED}, BARE) == "plain"
    assert "2 resources of kind LLM; 'a', the first" in caplog.text


def test_a_resource_that_is_missing_is_named() -> None:
    @prompt_rollout
    def agent(task: str, prompt_template: PromptTemplate) -> None: ...

    with pytest.raises(ValueError, match=r"needs a PromptTemplate.*\['m'\]"):
        agent.rollout("t", {"m": PLAIN}, BARE)


WITHOUT_TASK = ("llm", "prompt_template", "resources", "rollout")
EVERY_SIGNATURE = [
    ("task", *others)
    for count in range(len(WITHOUT_TASK) + 1)
    for others in itertools.combinations(WITHOUT_TASK, count)
]


def function_of(parameters: str, *, is_async: bool) -> Any:
    """Return a function with these parameters, which returns its arguments by name."""
    namespace: dict[str, Any] = {}
    exec(f"{'async ' * is_async}def agent({parameters}):\n    return locals()", namespace)
    return namespace["agent"]


async def called(agent: Any, is_async: bool) -> Any:
    resources: NamedResources = {"p": PROMPT, "m": PLAIN}
    return await agent.rollout_async("t", resources, BARE) if is_async else agent.rollout("t", resources, BARE)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("names", EVERY_SIGNATURE, ids="-".join)
async def test_every_documented_signature_makes_an_agent(names: tuple[str, ...], is_async: bool) -> None:
    values = {
        "task": "t",
        "llm": PLAIN,
        "prompt_template": PROMPT,
        "resources": {"p": PROMPT, "m": PLAIN},
        "rollout": BARE,
    }
    agent = rollout(function_of(", ".join(names), is_async=is_async))
    assert isinstance(agent, LitAgent)
    assert agent.is_async() == is_async
    assert await called(agent, is_async) == {name: values[name] for name in names}


@pytest.mark.parametrize(
    "parameters, received",
    [
        ("task, rollout, llm", {"task": "t", "llm": PLAIN, "rollout": BARE}),
        ("task, /, *, llm", {"task": "t", "llm": PLAIN}),
        ("task, llm, retries=3", {"task": "t", "llm": PLAIN, "retries": 3}),
        ("task, llm=None", {"task": "t", "llm": PLAIN}),
        ("task, llm, llms=()", {"task": "t", "llm": PLAIN, "llms": ()}),
        ("task, *args, **kwargs", {"task": "t", "args": (), "kwargs": {}}),
    ],
)
async def test_the_order_and_kind_of_the_other_parameters_are_free(parameters: str, received: Any) -> None:
    assert await called(rollout(function_of(parameters, is_async=False)), is_async=False) == received


@pytest.mark.parametrize(
    "parameters, missing, missing_of_all",
    [
        ("task", None, None),
        ("task, rollout", None, None),
        ("task, resources", None, "resources"),
        ("task, llm", "an LLM", "an LLM"),
        ("task, prompt_template, resources", "a PromptTemplate", "a PromptTemplate"),
        ("task, llm=None, prompt_template=None, resources=None", None, None),
    ],
)
def test_agent_names_its_missing_resource(parameters: str, missing: str | None, missing_of_all: str | None) -> None:
    agent = rollout(function_of(parameters, is_async=False))
    assert (agent.missing_resource({}), agent.missing_resource(None)) == (missing, missing_of_all)
    assert agent.missing_resource({"p": PROMPT, "m": PLAIN}) is None


def test_a_resource_with_a_default_may_be_missing() -> None:
    agent = rollout(function_of("task, llm=None, prompt_template=None", is_async=False))
    assert agent.rollout("t", {"p": PROMPT}, BARE) == {"task": "t", "llm": None, "prompt_template": PROMPT}


@pytest.mark.parametrize(
    "parameters, reason",
    [
        ("", "its first parameter is not task"),
        ("question, llm", "its first parameter is not task"),
        ("llm, task", "its first parameter is not task"),
        ("*task", "its first parameter is not task"),
        ("*, task, llm", "its first parameter is not task"),
        ("task, tools", "there is no value for tools, which has no default"),
        ("task, llm, *, depth", "there is no value for depth, which has no default"),
        ("task, llm, /", "llm cannot be passed by name"),
        ("task, **resources", "resources cannot be passed by name"),
        ("tsk, llm", "its first parameter is not task (did you mean task?)"),
        ("task, promt_template", "which has no default (did you mean prompt_template?)"),
        ("task, resource, llm", "which has no default (did you mean resources?)"),
        ("task, prompt_tempate=None", "the runner passes no prompt_tempate (did you mean prompt_template?)"),
        ("task, *, llms=()", "the runner passes no llms (did you mean llm?)"),
    ],
)
def test_another_signature_is_refused_with_the_reason(parameters: str, reason: str) -> None:
    with pytest.raises(UnsupportedSignature, match=re.escape(reason)) as refused:
        rollout(function_of(parameters, is_async=False))
    assert str(refused.value).startswith(f"agent({parameters}): ")
    assert isinstance(refused.value, Invalid)
    assert isinstance(refused.value, NotImplementedError)


def test_a_function_that_cannot_be_an_agent_is_refused_when_it_is_decorated() -> None:
    def no_task(question: str, llm: LLM) -> None: ...
    def alone(task: str) -> None: ...
    def other(task: str, tools: Any) -> None: ...

    for function in (no_task, alone, other):
        with pytest.raises(ValueError, match=r"it needs \(task, llm"):
            llm_rollout(function)
        with pytest.raises(ValueError, match=r"it needs \(task, prompt_template"):
            prompt_rollout(function)
    for function in (no_task, other):
        with pytest.raises(NotImplementedError, match="is not an agent"):
            rollout(function)
