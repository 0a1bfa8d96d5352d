"""Causal language models of Hugging Face that learn a game of finding a number: a small new or a pretrained model.

The small new model is not downloaded. Its tokenizer knows only the words of the game's chats. Because the new model is
not pretrained, it first gets lessons, in which it learns to predict random games.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from store.errors import Invalid, StoreError
from store.examples.guess_number.game import FOUND, HIGHER, LOWER, Game, Verdict
from store.examples.guess_number.policy import TokenModel, torch

_UNKNOWN, _PAD, _START, _END = "<unk>", "<pad>", "<|im_start|>", "<|im_end|>"
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LESSONS_SEED: Final = "lessons"


class TransformersMissing(StoreError, ImportError):
    """The package transformers is not installed. The message contains the commands that install it."""

    def __init__(self) -> None:
        super().__init__(
            "a language model needs transformers, version 5: pip install 'rollbook[huggingface]'; on Linux, install "
            "PyTorch without the gigabytes for graphics cards first: "
            "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
        )


def transformers() -> Any:
    """Return the module `transformers`.

    Raises:
        TorchMissing: PyTorch is not installed.
        TransformersMissing: transformers is not installed.
    """
    torch()
    try:
        return import_module("transformers")
    except ImportError:
        raise TransformersMissing from None


class ChatVocabulary:
    """Conversion between chats and the tokens of a tokenizer.

    Args:
        tokenizer: a tokenizer of Hugging Face. It must have a chat template.
        game: the game of the chats.
    """

    def __init__(self, tokenizer: Any, game: Game) -> None:
        self.tokenizer = tokenizer
        self.end: int | None = tokenizer.eos_token_id
        self.pad: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        numbers = [str(number) for number in range(1, game.numbers + 1)]
        longest = max(numbers, key=lambda word: len(self.answer(word)))
        self.longest_answer = len(self.answer(longest))
        turns: list[tuple[str, Verdict]] = [(longest, HIGHER)] * (game.guesses - 1)
        self.longest_prompt = len(self.tokens(game.messages(turns)))

    def tokens(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of a chat, up to the position at which the model's answer begins.

        Raises:
            Invalid: the messages are not a chat.
        """
        if not all(isinstance(message, Mapping) and "role" in message and "content" in message for message in messages):
            raise Invalid("messages", "need a role and a content each")
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)

    def answer(self, text: str) -> list[int]:
        """Return the tokens of an answer with the given text, including the token that ends the answer."""
        end = [] if self.end is None else [self.end]
        return [*self.tokenizer.encode(text, add_special_tokens=False), *end]

    def word(self, token: int) -> str:
        """Return the text of a token."""
        return self.tokenizer.convert_ids_to_tokens(token)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True).strip()


class LanguageModel(TokenModel):
    """A causal language model.

    Args:
        module: a model of Hugging Face.
        pad: the padding token.
    """

    def __init__(self, module: Any, pad: int) -> None:
        self.module = module
        self.pad = pad

    def following(self, ids: Any, mask: Any, count: int) -> Any:
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = self.module(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=count
        )
        logits = output.logits
        return torch().log_softmax(logits if logits.dtype.itemsize > 4 else logits.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class Transformer:
    """The configuration of a new model and of its lessons."""

    width: int = 32
    layers: int = 2
    heads: int = 4
    spread: float = 0.1
    """The standard deviation of the random weights."""
    lessons: int = 100
    """The number of lessons. A lesson is one update in which the model learns to predict the tokens of random games."""
    games: int = 16
    """The number of random games in a lesson."""
    rate: float = 0.005


class TransformerModels:
    """Small models with the architecture of GPT-2. The tokenizer knows only digits and the words of the game's chats.

    Args:
        game: the game that the models learn.
        how: the configuration of the models and of their lessons.

    Raises:
        TorchMissing: PyTorch is not installed.
        TransformersMissing: transformers is not installed.
    """

    first_weights = "weights that know random games"

    def __init__(self, game: Game, how: Transformer) -> None:
        self._game = game
        self._how = how
        self._lib = transformers()
        self.vocabulary = ChatVocabulary(_tokenizer(self._lib, game), game)

    def create(self, seed: int) -> LanguageModel:
        """Return a new model with random weights, after its lessons."""
        model = self._build(seed)
        self._teach(model, random.Random(f"{_LESSONS_SEED}/{seed}"))
        return model

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Return the weights as text; `weights_id` is not used."""
        del weights_id
        return model.to_text()

    def load(self, text: str) -> LanguageModel:
        """Return a model with the weights in a text of `save`."""
        return self._build(0).load_text(text)

    def _build(self, seed: int) -> LanguageModel:
        how, vocabulary = self._how, self.vocabulary
        config = self._lib.GPT2Config(
            vocab_size=len(vocabulary.tokenizer),
            n_positions=vocabulary.longest_prompt + vocabulary.longest_answer,
            n_embd=how.width,
            n_layer=how.layers,
            n_head=how.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=vocabulary.end,
            eos_token_id=vocabulary.end,
            pad_token_id=vocabulary.pad,
            initializer_range=how.spread,
            attn_implementation="eager",
        )
        lib = torch()
        with lib.random.fork_rng(devices=[]):
            lib.manual_seed(seed)
            module = self._lib.GPT2LMHeadModel(config)
        # In single precision, the choice of a token could depend on the other prompts of the batch.
        return LanguageModel(module.double(), vocabulary.pad)

    def _teach(self, model: LanguageModel, dice: random.Random) -> None:
        """Give the model its lessons: train it to predict every token of chats in which the guesses are random."""
        lib = torch()
        adam = lib.optim.Adam(model.module.parameters(), lr=self._how.rate)
        for _ in range(self._how.lessons):
            chats = [self._random_chat(dice) for _ in range(self._how.games)]
            longest = max(map(len, chats))
            ids = lib.tensor([[model.pad] * (longest - len(chat)) + chat for chat in chats])
            mask = lib.tensor([[0] * (longest - len(chat)) + [1] * len(chat) for chat in chats])
            log_probs = model.following(ids[:, :-1], mask[:, :-1], longest - 1)
            chosen = log_probs.gather(2, ids[:, 1:, None])[:, :, 0]
            adam.zero_grad()
            (-chosen[mask[:, :-1] > 0].mean()).backward()
            adam.step()

    def _random_chat(self, dice: random.Random) -> list[int]:
        """Return the tokens of a game with correct hints. The player guesses at random, and ignores the hints."""
        game, turns = self._game, list[tuple[str, Verdict]]()
        secret, guess = dice.randint(1, game.numbers), ""
        while len(turns) < game.guesses - 1:
            guess = str(dice.randint(1, game.numbers))
            verdict = game.judge(secret, guess)
            if verdict is None or verdict == FOUND:
                break
            turns.append((guess, verdict))
        else:
            guess = str(dice.randint(1, game.numbers))
        return self.vocabulary.tokens(game.messages(turns)) + self.vocabulary.answer(guess)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A pretrained model in Hugging Face's format, and the directories of its versions."""

    model: str
    """The directory of the model, or the model's name on the Hugging Face Hub."""
    checkpoints: Path
    """The directory that contains all versions. The name of a version's directory is the id of its weights."""
    vllm: str | None = None
    """The address of the vLLM server that serves the versions; None to serve the versions in this process."""


class PretrainedModels:
    """A pretrained model and its versions. A version is saved as a directory. Its text is the path of the directory.

    Args:
        game: the game that the model learns.
        how: the pretrained model, and the directories of its versions.

    Raises:
        TorchMissing: PyTorch is not installed.
        TransformersMissing: transformers is not installed.
        Invalid: the model cannot be loaded, or vLLM cannot reload the weights of such a model.
    """

    first_weights = "its pretrained weights"

    def __init__(self, game: Game, how: Pretrained) -> None:
        self._lib = transformers()
        self._how = how
        self._lib.utils.logging.disable_progress_bar()
        try:
            config = self._lib.AutoConfig.from_pretrained(how.model)
            tokenizer = self._lib.AutoTokenizer.from_pretrained(how.model)
        except (OSError, ValueError) as error:
            problem = str(error).splitlines()[0]
            raise Invalid("model", f"{how.model} is no model that transformers can load ({problem})") from error
        if how.vllm is not None and config.tie_word_embeddings:
            # For such a model, vLLM 0.32 reloads the embedding but keeps the old output layer.
            raise Invalid(
                "model",
                f"{how.model} uses one matrix as its embedding and output layer (tie_word_embeddings), which vLLM "
                "does not reload; take a model with two matrices, or do not use vLLM",
            )
        self.vocabulary = ChatVocabulary(tokenizer, game)

    def create(self, seed: int) -> LanguageModel:
        """Return the pretrained model unchanged; the seed is not used."""
        del seed
        return self.load(self._how.model)

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Write the model to the directory of the version, unless the directory exists, and return the path.

        The directory appears only after it is complete.
        """
        directory = (self._how.checkpoints / weights_id).resolve()
        if not directory.exists():
            new = directory.with_name(f"{directory.name}.new")
            new.mkdir(parents=True, exist_ok=True)
            model.module.save_pretrained(new)
            self.vocabulary.tokenizer.save_pretrained(new)
            new.replace(directory)
        return str(directory)

    def load(self, text: str) -> LanguageModel:
        """Return the model in the directory with the given path, on a graphics card if the machine has one."""
        lib = torch()
        # In half precision, small updates would be lost to rounding.
        module = self._lib.AutoModelForCausalLM.from_pretrained(text, dtype="float32").eval()
        return LanguageModel(module.to("cuda" if lib.cuda.is_available() else "cpu"), self.vocabulary.pad)


def _tokenizer(lib: Any, game: Game) -> Any:
    """Return a tokenizer that has one token for each word of the game's chats and one for each digit."""
    parts: Any = import_module("tokenizers")
    split = parts.pre_tokenizers.Sequence([
        parts.pre_tokenizers.Whitespace(),
        parts.pre_tokenizers.Digits(individual_digits=True),
    ])  # fmt: skip
    texts = ["user assistant", HIGHER, LOWER, "0123456789", *(message["content"] for message in game.messages([]))]
    words = [word for text in texts for word, _ in split.pre_tokenize_str(text)]
    special = [_UNKNOWN, _PAD, _START, _END]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*special, *words]))}
    tokenizer = parts.Tokenizer(parts.models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = parts.decoders.Fuse()
    fast = lib.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=_UNKNOWN,
        pad_token=_PAD,
        eos_token=_END,
        additional_special_tokens=[_START],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast
