"""Kinds of models that learn the game: how each is created, and stored as the text of a resource."""

from __future__ import annotations

from typing import Protocol

from store.examples.guess_number.game import Game, Vocabulary
from store.examples.guess_number.policy import Policy, TokenModel


class Models(Protocol):
    """A kind of model, for one game."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The conversion between messages and the model's tokens."""
        ...

    @property
    def first_weights(self) -> str:
        """What the weights of version 0 are, for the report."""
        ...

    def create(self, seed: int) -> TokenModel:
        """Return the model of version 0; equal seeds give equal weights."""
        ...

    def save(self, model: TokenModel, weights_id: str) -> str:
        """Return a text from which `load` makes the same model again."""
        ...

    def load(self, text: str) -> TokenModel:
        """Return the model that was saved as this text."""
        ...


class GruModels:
    """Networks with one token for each word of the game, and random weights at first."""

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
