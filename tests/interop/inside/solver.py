"""An agent as users of Agent-lightning write it: it requests each answer from a model and emits a reward."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedFunctionDecorator=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

from typing import Any

from agentlightning import emit_message, emit_reward, operation, rollout
from openai import OpenAI


@rollout
def solver(task: dict[str, Any], llm: Any) -> float:
    """Answer the questions of a task in one conversation; the last answer's worth is returned, the others' emitted."""
    client = OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0)
    talk: list[Any] = [{"role": "system", "content": "Answer with one number."}]
    worth = 0.0
    for turn, (question, right) in enumerate(task["questions"].items()):
        talk.append({"role": "user", "content": question})
        with operation(name="turn"):
            answer = client.chat.completions.create(model=llm.model, messages=talk, temperature=0.5, max_tokens=16)
        said = answer.choices[0].message.content or ""
        talk.append({"role": "assistant", "content": said})
        worth = 1.0 if said == right else -0.5
        emit_message(f"{question} {said}")
        if turn + 1 < len(task["questions"]):
            emit_reward({"right": worth, "short": 1 / len(said)}, primary_key="right")
    return worth
