"""Kinds of models that learn a game of finding a number.

A kind creates models, and converts models to text and back.
"""

from __future__ import annotations

from typing import Protocol

from store.examples.guess_number.game import Game, Vocabulary
from store.examples.guess_number.policy import Policy, TokenModel


class Models(Protocol):
    """A kind of model that learns one game."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The conversion between messages and the model's tokens."""
        ...

    @property
    def first_weights(self) -> str:
        """A description of the weights of version 0, which the report of a training contains."""
        ...

    def create(self, seed: int) -> TokenModel:
        """Return the model of version 0. The same seed always gives the same weights."""
        ...

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Return a text from which `load` makes the same model again.

        `weights_id` is the id of the resources in which the text is stored.
        """
        ...

    def load(self, text: str) -> TokenModel:
        """Return the model in a text that `save` returned."""
        ...


class GruModels:
    """Models that are GRU networks with one token for each word of the game. The first weights are random."""

    first_weights = "random weights"

    def __init__(self, game: Game) -> None:
        self.vocabulary = game

    def create(self, seed: int) -> Policy:
        return Policy(len(self.vocabulary.words), seed)

    def save(self, model: TokenModel, weights_id: str) -> str:
        del weights_id
        return model.to_text()

    def load(self, text: str) -> Policy:
        return Policy.from_text(len(self.vocabulary.words), text)
