"""A causal language model of Hugging Face, built from a config, with a tokenizer of the words of the game's chats.

Nothing is downloaded. In place of the training that a downloaded model brings, lessons show random games.
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
    """Transformers is not installed; the message says how to install it."""

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
        TransformersMissing: it is not installed.
    """
    torch()
    try:
        return import_module("transformers")
    except ImportError:
        raise TransformersMissing from None


class ChatVocabulary:
    """Chats as the tokens of a tokenizer with a chat template.

    Args:
        tokenizer: a tokenizer of Hugging Face.
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
        """Return the tokens of a chat, up to the place of the model's answer.

        Raises:
            Invalid: the messages are not a chat.
        """
        if not all(isinstance(each, Mapping) and "role" in each and "content" in each for each in messages):
            raise Invalid("messages", "need a role and a content each")
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)

    def answer(self, text: str) -> list[int]:
        """Return the tokens with which a model answers a text."""
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
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)
        made = self.module(
            input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=count
        )
        logits = made.logits
        return torch().log_softmax(logits if logits.dtype.itemsize > 4 else logits.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class Transformer:
    """The config of a model that is built from scratch, and of its lessons."""

    width: int = 32
    layers: int = 2
    heads: int = 4
    spread: float = 0.1
    """The standard deviation of random weights."""
    lessons: int = 100
    """The number of updates with which the model learns to predict the tokens of games that are played at random."""
    games: int = 16
    """The number of random games of a lesson."""
    rate: float = 0.005


class TransformerModels:
    """GPT-2 in small, with a tokenizer that knows the words of the chats and digits.

    Args:
        game: the game.
        how: the config.

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
        """Return a model with random weights that has had its lessons."""
        model = self._build(seed)
        self._teach(model, random.Random(f"{_LESSONS_SEED}/{seed}"))
        return model

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Return the weights as text."""
        del weights_id
        return model.to_text()

    def load(self, text: str) -> LanguageModel:
        """Return a model with the weights in a text."""
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
        # As for the GRU: in single precision a choice could depend on the rest of its batch.
        return LanguageModel(module.double(), vocabulary.pad)

    def _teach(self, model: LanguageModel, dice: random.Random) -> None:
        """Train the model to predict every token of chats whose guesses are random numbers."""
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
        """Return the tokens of a game, with true hints, played without regard to them."""
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
    """A model in Hugging Face's format, and where its versions go."""

    model: str
    """The directory of the model, or its name at the hub."""
    checkpoints: Path
    """The directory for the versions, each under the id of its weights."""
    vllm: str | None = None
    """The address of the vLLM that serves the versions; None to serve them in this process."""


class PretrainedModels:
    """A pretrained model, whose versions are saved as directories; their paths are the texts.

    Args:
        game: the game.
        how: the model and its directories.

    Raises:
        TorchMissing: PyTorch is not installed.
        TransformersMissing: transformers is not installed.
        Invalid: there is no such model, or vLLM cannot reload its weights.
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
            # vLLM 0.32 reloads the embedding, and keeps the old output layer.
            raise Invalid(
                "model",
                f"{how.model} uses one matrix as its embedding and output layer (tie_word_embeddings), which vLLM "
                "does not reload; take a model with two, or leave out the vLLM",
            )
        self.vocabulary = ChatVocabulary(tokenizer, game)

    def create(self, seed: int) -> LanguageModel:
        """Return the model as it is; the seed changes nothing."""
        del seed
        return self.load(self._how.model)

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Write a directory, whole or not at all, and return its path."""
        directory = (self._how.checkpoints / weights_id).resolve()
        if not directory.exists():
            new = directory.with_name(f"{directory.name}.new")
            new.mkdir(parents=True, exist_ok=True)
            model.module.save_pretrained(new)
            self.vocabulary.tokenizer.save_pretrained(new)
            new.replace(directory)
        return str(directory)

    def load(self, text: str) -> LanguageModel:
        """Return the model of a directory, on a graphics card if there is one."""
        lib = torch()
        # In half precision, small updates would be lost to rounding.
        module = self._lib.AutoModelForCausalLM.from_pretrained(text, dtype="float32").eval()
        return LanguageModel(module.to("cuda" if lib.cuda.is_available() else "cpu"), self.vocabulary.pad)


def _tokenizer(lib: Any, game: Game) -> Any:
    """Return a tokenizer with a token for each word of the game's chats, and for each digit."""
    parts: Any = import_module("tokenizers")
    split = parts.pre_tokenizers.Sequence([
        parts.pre_tokenizers.Whitespace(),
        parts.pre_tokenizers.Digits(individual_digits=True),
    ])  # fmt: skip
    texts = ["user assistant", HIGHER, LOWER, "0123456789", *(each["content"] for each in game.messages([]))]
    words = [word for text in texts for word, _ in split.pre_tokenize_str(text)]
    special = [_UNKNOWN, _PAD, _START, _END]
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys([*special, *words]))}
    tokenizer = parts.Tokenizer(parts.models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = parts.decoders.Fuse()
    made = lib.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=_UNKNOWN,
        pad_token=_PAD,
        eos_token=_END,
        additional_special_tokens=[_START],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = _CHAT_TEMPLATE
    return made
