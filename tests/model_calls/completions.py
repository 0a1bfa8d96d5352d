"""Responses and streams of OpenAI's Completions API."""

from __future__ import annotations

from typing import Any

from tests.model_calls.entries import DONE, MODEL, Answer, Entry, Json, event

ID = "cmpl-1"
QUESTION: Json = {"model": MODEL, "prompt": "Six times seven is"}
USAGE: Json = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
COUNTS = {"prompt": 4, "completion": 2, "total": 6}


def response(*choices: Json, **details: Any) -> Json:
    """Return a response, or one chunk of a stream."""
    return {"id": ID, "object": "text_completion", "created": 1, "model": MODEL, "choices": list(choices), **details}


def choice(text: Any, finish: str | None = None, index: int = 0, **details: Any) -> Json:
    """Return one choice."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish, **details}


def stream(*events: Json, done: bool = True) -> tuple[bytes, ...]:
    """Return the frames of a stream."""
    return (*map(event, events), *([DONE] if done else []))


def entry(name: str, *answers: Answer, **details: Any) -> Entry:
    """Return an entry of this protocol."""
    fields: dict[str, Any] = {"request": QUESTION, "response_id": ID, **details}
    return Entry(name=f"completions {name}", protocol="completions", answers=answers, **fields)


def logprobs(*pairs: tuple[str, float | None], offset: int = 0) -> Json:
    """Return log probabilities in the form of this API."""
    return {
        "tokens": [token for token, _ in pairs],
        "token_logprobs": [value for _, value in pairs],
        "top_logprobs": [{token: value} for token, value in pairs],
        "text_offset": [offset + index for index in range(len(pairs))],
    }


ENTRIES = (
    entry(
        "text",
        Answer(text=" 42.", finish="stop"),
        response=response(choice(" 42.", "stop"), usage=USAGE),
        frames=stream(
            response(choice(" 4")), response(choice("2.")), response(choice("", "stop")), response(usage=USAGE)
        ),
        usage=COUNTS,
        prompt=(("user", "text", "Six times seven is"),),
    ),
    entry(
        "Unicode",
        Answer(text=" 世界🦜", finish="length"),
        response=response(choice(" 世界🦜", "length")),
        frames=stream(response(choice(" 世")), response(choice("界🦜", "length"))),
    ),
    entry(
        "empty text",
        Answer(finish="stop"),
        response=response(choice("", "stop")),
        frames=stream(response(choice("", "stop"))),
    ),
    entry(
        "null text",
        Answer(finish="stop"),
        response=response(choice(None, "stop")),
        frames=stream(response(choice(None, "stop"))),
    ),
    entry(
        "two choices",
        Answer(text=" 42", finish="stop"),
        Answer(text=" 43", finish="length"),
        request={**QUESTION, "n": 2},
        response=response(choice(" 42", "stop"), choice(" 43", "length", 1)),
        frames=stream(
            response(choice(" 4", index=1)), response(choice(" 42", "stop")), response(choice("3", "length", 1))
        ),
    ),
    entry(
        "two prompts",
        Answer(text=" A", finish="stop"),
        Answer(text=" B", finish="stop"),
        request={"model": MODEL, "prompt": ["a", "b"]},
        response=response(choice(" A", "stop"), choice(" B", "stop", 1)),
        frames=stream(response(choice(" A", "stop"), choice(" B", "stop", 1))),
        prompt=(("user", "text", "a"), ("user", "text", "b")),
    ),
    entry(
        "prompt of token ids",
        Answer(text=" A", finish="stop"),
        request={"model": MODEL, "prompt": [11, 12, 13]},
        response=response(choice(" A", "stop")),
    ),
    entry(
        "prompts of token ids",
        Answer(text=" A", finish="stop"),
        Answer(text=" B", finish="stop"),
        request={"model": MODEL, "prompt": [[11, 12], [13]]},
        response=response(choice(" A", "stop"), choice(" B", "stop", 1)),
    ),
    entry(
        "log probabilities",
        Answer(text=" 42.", finish="stop", logprobs=(-0.25, -0.5)),
        request={**QUESTION, "logprobs": 1},
        response=response(choice(" 42.", "stop", logprobs=logprobs((" 42", -0.25), (".", -0.5)))),
        frames=stream(
            response(choice(" 42", logprobs=logprobs((" 42", -0.25)))),
            response(choice(".", "stop", logprobs=logprobs((".", -0.5), offset=3))),
        ),
    ),
    entry(
        "log probabilities with an echo",
        Answer(text="Hi you", finish="stop", logprobs=(None, -0.5)),
        request={**QUESTION, "prompt": "Hi", "logprobs": 0, "echo": True},
        response=response(choice("Hi you", "stop", logprobs=logprobs(("Hi", None), (" you", -0.5)))),
    ),
    entry(
        "token ids of vLLM",
        Answer(text=" 42.", finish="stop", token_ids=(21, 22)),
        response=response(choice(" 42.", "stop", token_ids=[21, 22], prompt_token_ids=[11, 12, 13, 14]), usage=USAGE),
        frames=stream(
            response(choice(" 42", token_ids=[21], prompt_token_ids=[11, 12, 13, 14])),
            response(choice(".", "stop", token_ids=[22]), usage=USAGE),
        ),
        prompt_token_ids=(11, 12, 13, 14),
        usage=COUNTS,
    ),
    entry(
        "tokens as token ids",
        Answer(text=" 42.", finish="stop", token_ids=(21, 22), logprobs=(-0.25, -0.5)),
        response=response(choice(" 42.", "stop", logprobs=logprobs(("token_id:21", -0.25), ("token_id:22", -0.5)))),
        frames=stream(
            response(choice(" 42", logprobs=logprobs(("token_id:21", -0.25)))),
            response(choice(".", "stop", logprobs=logprobs(("token_id:22", -0.5)))),
        ),
        usage={"completion": 2},
    ),
    entry(
        "log probabilities in the form of the Chat API",
        Answer(text=" 42", finish="stop", logprobs=(-0.25,)),
        response=response(choice(" 42", "stop", logprobs={"content": [{"token": " 42", "logprob": -0.25}]})),
        frames=stream(response(choice(" 42", "stop", logprobs={"content": [{"token": " 42", "logprob": -0.25}]}))),
    ),
    entry(
        "no end",
        Answer(text=" 4"),
        frames=stream(response(choice(" ")), response(choice("4")), done=False),
        ends=False,
    ),
    entry(
        "no end mark",
        Answer(text=" 42", finish="stop"),
        frames=stream(response(choice(" 4")), response(choice("2", "stop")), done=False),
    ),
    entry(
        "error in the middle",
        Answer(text=" 4"),
        frames=(event(response(choice(" 4"))), event({"error": {"message": "overloaded"}})),
        ends=False,
        error="overloaded",
    ),
    entry(
        "usage in every chunk",
        Answer(text=" 42", finish="stop"),
        frames=stream(
            response(choice(" 4"), usage={"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}),
            response(choice("2", "stop"), usage=USAGE),
            response(usage=USAGE),
        ),
        usage=COUNTS,
    ),
    entry(
        "settings",
        Answer(text=" 42", finish="stop"),
        request={**QUESTION, "max_tokens": 5, "temperature": 0.0, "best_of": 2, "suffix": "!", "stop": ["."]},
        response=response(choice(" 42", "stop")),
    ),
)
