"""Files for fine-tuning in TRL's own trainer, with a tiny model of random weights, where TRL is installed."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from store.exports import export_store
from store.interface.store import Store
from tests.exports.documented import PAGE

pytestmark = [
    pytest.mark.skipif(
        find_spec("trl") is None and not os.environ.get("ROLLBOOK_REQUIRE_TRL"),
        reason="TRL is not installed: make test-trl",
    ),
    pytest.mark.filterwarnings("ignore"),  # of TRL's own use of other packages
]

TEMPLATE = """\
{% for message in messages %}{{ message.role + ': ' }}{% if message.role == 'assistant' %}{% generation %}\
{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ eos_token }}\
{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer with a token for each byte."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    pre_tokenizers = import_module("tokenizers.pre_tokenizers")
    tokens = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = import_module("tokenizers.models").BPE(vocab=vocabulary, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = import_module("tokenizers.decoders").ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", chat_template=TEMPLATE
    )


@pytest.fixture
def model() -> Any:
    """A model with random weights."""
    transformers = import_module("transformers")
    config = transformers.Qwen3Config(
        vocab_size=258, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=2048,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config)


def trained(model: Any, tokenizer: Any, rows: Any, directory: Path, **options: Any) -> list[str]:
    """Train two steps; return the text of each row that the loss includes."""
    trl = import_module("trl")
    config = trl.SFTConfig(
        output_dir=str(directory), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, bf16=False,
        save_strategy="no", max_length=2048, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
    before = next(model.parameters()).detach().clone()
    assert trainer.train().global_step == 2
    assert not before.equal(next(model.parameters()).detach())
    labels = [row for batch in trainer.get_train_dataloader() for row in batch["labels"].tolist()]
    return sorted(tokenizer.decode([label for label in row if label >= 0]) for row in labels)


def use(number: int) -> str:
    """The tool call of an agent, as the template writes it."""
    call = f'{{"name": "add", "arguments": {{"a": {number}, "b": {number}}}}}'
    return f'[{{"id": "c1", "type": "function", "function": {call}}}]<eos>'


async def test_trl_trains_the_responses_of_exported_conversations(
    store: Store, model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    await export_store(store, "sft", tmp_path / "conversations")
    rows = import_module("datasets").load_dataset("conversations", split="train", cache_dir=str(tmp_path / "cache"))
    texts = trained(model, tokenizer, rows, tmp_path / "lines", assistant_only_loss=True)
    assert texts == sorted(f"{use(number)}It is {2 * number}.<eos>" for number in range(7))

    # The example of docs/export.md makes a row of each response.
    example = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)[-1]
    namespace: dict[str, Any] = {}
    exec(example, namespace)
    texts = trained(model, tokenizer, namespace["rows"], tmp_path / "rows")
    expected = [text for number in range(7) for text in (use(number), f"It is {2 * number}.<eos>")]
    assert [text.strip() for text in texts] == sorted(expected)
