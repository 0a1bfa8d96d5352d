"""Base class of models that predict the next token, a small model (a GRU), and the learner that updates a model."""

from __future__ import annotations

import base64
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self

from store.errors import StoreError
from store.examples.guess_number.game import BEGIN
from store.training import Trajectories

WIDTH: Final = 32
"""The size of the embedding of a word, and of the state of the GRU."""

# Further decimals of a result depend on the other prompts of its batch. Without rounding, the weights after a training
# would depend on the order of calls.
_DECIMALS: Final = 9


class TorchMissing(StoreError, ImportError):
    """PyTorch is not installed. The message contains the commands that install it."""

    def __init__(self) -> None:
        super().__init__(
            "this example needs PyTorch, version 2.13. On Linux, without the gigabytes for graphics cards: "
            "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu; "
            "elsewhere: pip install 'rollbook[examples]'"
        )


def torch() -> Any:
    """Return the module `torch`, limited to one core, because the tensors are too small for several cores.

    Raises:
        TorchMissing: PyTorch is not installed.
    """
    try:
        # PyTorch is an extra, so type checkers may not know its types.
        module = import_module("torch")
    except ImportError:
        raise TorchMissing from None
    module.set_num_threads(1)
    return module


class Sampled(NamedTuple):
    """A token that a model chose, with its probability."""

    token: int
    log_prob: float
    """The natural logarithm of the token's probability."""


class TokenModel(ABC):
    """Model that predicts the next token after some tokens. The model is evaluated for batches of B prompts.

    A batch has the width of its longest prompt, P. Shorter prompts are padded on the left.

    Attributes:
        module: the PyTorch module with the weights.
        pad: the padding token.
    """

    module: Any
    pad: int = BEGIN

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(weights.numel() for weights in self.module.parameters())

    @abstractmethod
    def following(self, ids: Any, mask: Any, count: int) -> Any:
        """Return the log probabilities of every possible next token, for each of the last `count` positions.

        Args:
            ids: the tokens, of shape (B, P).
            mask: 1 for tokens and 0 for padding, of shape (B, P).
            count: the number of positions.

        Returns:
            A tensor of shape (B, count, number of possible tokens).
        """

    def log_probs(self, ids: Any, mask: Any) -> Any:
        """Return the log probabilities of every possible next token after each prompt.

        Args:
            ids: the tokens, of shape (B, P).
            mask: 1 for tokens and 0 for padding, of shape (B, P).

        Returns:
            A tensor of shape (B, number of possible tokens).
        """
        return self.following(ids, mask, 1)[:, 0]

    def sample(self, prompts: Sequence[Sequence[int]], draws: Sequence[float]) -> list[Sampled]:
        """Return a next token for each prompt, chosen according to the probabilities.

        Args:
            prompts: the tokens of each prompt.
            draws: a number in [0, 1) for each prompt, which makes the choice. The same number always chooses the same
                token after the same prompt.
        """
        lib = torch()
        longest = max(map(len, prompts))
        ids = [[self.pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with lib.no_grad():
            device = next(self.module.parameters()).device
            log_probs = self.log_probs(lib.tensor(ids, device=device), lib.tensor(mask, device=device))
        rows: list[list[float]] = log_probs.tolist()
        return [_drawn(row, draw) for row, draw in zip(rows, draws, strict=True)]

    def to_text(self) -> str:
        """Return the weights as text for `load_text`."""
        buffer = io.BytesIO()
        torch().save(self.module.state_dict(), buffer)
        return base64.b85encode(buffer.getvalue()).decode()

    def load_text(self, text: str) -> Self:
        """Replace the weights of this model by the weights in a text of `to_text`, and return this model."""
        self.module.load_state_dict(torch().load(io.BytesIO(base64.b85decode(text)), weights_only=True))
        return self


class Policy(TokenModel):
    """Small model whose tokens are words. It consists of an embedding, a GRU and one linear layer.

    Args:
        words: the number of words that the model knows.
        seed: the seed of the random weights.

    Raises:
        TorchMissing: PyTorch is not installed.
    """

    def __init__(self, words: int, seed: int = 0) -> None:
        lib = torch()
        self.words = words
        with lib.random.fork_rng(devices=[]):
            lib.manual_seed(seed)
            self.module = lib.nn.ModuleDict({
                "embedding": lib.nn.Embedding(words, WIDTH),
                "cell": lib.nn.GRUCell(WIDTH, WIDTH),
                "head": lib.nn.Linear(WIDTH, words),
            })  # fmt: skip
        # In single precision, the choice of a word could depend on the other prompts of the batch. A repeated training
        # could then have another result.
        self.module.double()

    def following(self, ids: Any, mask: Any, count: int) -> Any:
        lib = torch()
        cell, embedded = self.module["cell"], self.module["embedding"](ids)
        hidden = embedded.new_zeros(len(ids), WIDTH)
        states: list[Any] = []
        for index in range(ids.shape[1]):
            # Padding leaves the state unchanged.
            hidden = lib.where(mask[:, index, None] > 0, cell(embedded[:, index], hidden), hidden)
            states.append(hidden)
        return lib.log_softmax(self.module["head"](lib.stack(states[-count:], dim=1)), dim=-1)

    @classmethod
    def from_text(cls, words: int, text: str) -> Self:
        """Return a policy with the weights in a text of `to_text`."""
        return cls(words).load_text(text)


def _drawn(log_probs: Sequence[float], draw: float) -> Sampled:
    upper = accumulate(math.exp(log_prob) for log_prob in log_probs)
    # If the sum of all probabilities is not greater than the draw because of rounding, the last token is chosen.
    token = next((index for index, end in enumerate(upper) if draw < end), len(log_probs) - 1)
    return Sampled(token, round(log_probs[token], _DECIMALS))


@dataclass(frozen=True, slots=True)
class Learning:
    """The parameters of the updates of a model, which use PPO's clipped objective with an entropy bonus."""

    rate: float = 0.02
    """The learning rate."""
    passes: int = 4
    """The number of updates with each batch."""
    clip: float = 0.2
    """The maximum rewarded distance between 1 and the ratio of a token's new probability to its old probability."""
    entropy: float = 0.01
    """The weight of the entropy bonus."""
    norm: float = 1.0
    """The maximum norm of the gradient."""
    rows: int | None = None
    """The maximum number of rows that are processed at once, to limit the memory; None for all rows."""


class Learner:
    """Optimizer of a model, which changes the weights of the given model in place."""

    def __init__(self, model: TokenModel, how: Learning) -> None:
        self._model = model
        self._how = how
        self._adam = torch().optim.Adam(model.module.parameters(), lr=how.rate)

    def learn(self, batch: Trajectories, advantages: Sequence[float]) -> float:
        """Increase the probability of responses with an advantage above 0; decrease the probability of other responses.

        Args:
            batch: the calls of the model, with one row for each call.
            advantages: the advantage of each row: the difference between its reward and the mean reward of similar
                calls. Every token of a response has the advantage of its row.

        Returns:
            The mean entropy of the choice of a token in the last pass.
        """
        lib, how = torch(), self._how
        device = next(self._model.module.parameters()).device
        worth = lib.tensor(advantages, dtype=lib.float64, device=device)
        mask = lib.tensor(batch.response_mask, device=device) > 0
        parts = range(0, len(batch), how.rows or len(batch))
        tokens, entropy = int(mask.sum()), 0.0
        for _ in range(how.passes):
            entropy = 0.0
            self._adam.zero_grad()
            for start in parts:
                rows = slice(start, start + (how.rows or len(batch)))
                gain, uncertain = self._gain(batch, rows, mask[rows], worth[rows], device)
                (-(gain + how.entropy * uncertain) / tokens).backward()
                entropy += float(uncertain.detach()) / tokens
            lib.nn.utils.clip_grad_norm_(self._model.module.parameters(), how.norm)
            self._adam.step()
        return entropy

    def _gain(self, batch: Trajectories, rows: slice, generated: Any, worth: Any, device: Any) -> tuple[Any, Any]:
        """Return two sums over the response tokens of some rows: the clipped objective, and the entropy."""
        lib, clip = torch(), self._how.clip
        # No token follows the last token, so the model need not predict one.
        ids = lib.tensor(batch.input_ids[rows], device=device)[:, :-1]
        mask = lib.tensor(batch.attention_mask[rows], device=device)[:, :-1]
        chosen = lib.tensor(batch.responses[rows], device=device)[generated]
        before = lib.tensor(batch.old_log_probs[rows], dtype=lib.float64, device=device)[generated]
        token_worth = worth[:, None].expand(generated.shape)[generated]
        log_probs = self._model.following(ids, mask, generated.shape[1])[generated]
        ratio = (log_probs.gather(1, chosen[:, None])[:, 0] - before).exp()
        gain = lib.minimum(ratio * token_worth, ratio.clamp(1 - clip, 1 + clip) * token_worth).sum()
        return gain, -(log_probs.exp() * log_probs).sum()
