"""Rules of a game of finding a secret number by guesses and hints, and conversion of games to messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from store.errors import Invalid

HIGHER: Final = "higher"
LOWER: Final = "lower"
FOUND: Final = "found"
BEGIN: Final = 0
"""The first token of every game."""

_WORDS_BEFORE_NUMBERS: Final = ("begin", HIGHER, LOWER)

Verdict = Literal["higher", "lower", "found"]


class Vocabulary(Protocol):
    """Conversion between chats, which are lists of messages, and the tokens of a model."""

    @property
    def end(self) -> int | None:
        """The token that ends an answer. With None, an answer ends only at its maximum length."""
        ...

    @property
    def pad(self) -> int:
        """The padding token."""
        ...

    @property
    def longest_prompt(self) -> int:
        """The maximum number of tokens of a prompt, which is the chat before the last guess of a game."""
        ...

    @property
    def longest_answer(self) -> int:
        """The maximum number of tokens of an answer."""
        ...

    def tokens(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of a chat.

        Raises:
            Invalid: the messages are not a chat.
        """
        ...

    def word(self, token: int) -> str:
        """Return the text of a token."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Game:
    """The rules: the player has at most `guesses` guesses to find a secret number from 1 to `numbers`.

    A guess that is not a number of the game loses the game. A `Game` is also a `Vocabulary`, for a model with one token
    for each word. Each answer of that model has one token.
    """

    numbers: int = 15
    guesses: int = 4

    @property
    def words(self) -> tuple[str, ...]:
        """All words, each at the index of its token."""
        return (*_WORDS_BEFORE_NUMBERS, *map(str, range(1, self.numbers + 1)))

    @property
    def longest_prompt(self) -> int:
        """The maximum number of tokens before the last guess."""
        return 2 * self.guesses - 1

    @property
    def end(self) -> None:
        """None, because an answer always has one token and needs no token that ends it."""
        return

    @property
    def pad(self) -> int:
        """The padding token."""
        return BEGIN

    @property
    def longest_answer(self) -> int:
        """The number of tokens of an answer."""
        return 1

    @property
    def by_luck(self) -> float:
        """The probability that a player who ignores the hints and never repeats a guess finds the secret."""
        return min(self.guesses / self.numbers, 1.0)

    @property
    def by_halving(self) -> float:
        """The probability that a player who halves the possible range with each guess finds the secret.

        No other strategy is better.
        """
        return min((2**self.guesses - 1) / self.numbers, 1.0)

    def judge(self, secret: int, answer: str) -> Verdict | None:
        """Return the hint for a guess, or None if the guess is not a number of the game."""
        if answer not in self.words[len(_WORDS_BEFORE_NUMBERS) :]:
            return None
        guess = int(answer)
        return FOUND if guess == secret else HIGHER if secret > guess else LOWER

    def messages(self, turns: Sequence[tuple[str, Verdict]]) -> list[dict[str, str]]:
        """Return the guesses and hints of a game as a chat."""
        task = f"Find a number from 1 to {self.numbers} in {self.guesses} guesses. I say {HIGHER} or {LOWER}."
        chat = [{"role": "user", "content": task}]
        for guess, hint in turns:
            chat += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
        return chat

    def tokens(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of a chat, one for each message. The first message may have any text.

        Raises:
            Invalid: a message after the first is not a word of the game.
        """
        words = self.words
        try:
            contents = [message["content"] for message in messages[1:]]
            return [BEGIN, *(words.index(word) for word in contents)]
        except (KeyError, TypeError, ValueError):
            raise Invalid("messages", f"say one of {', '.join(words[1:])} each, after the first") from None

    def word(self, token: int) -> str:
        """Return the word of a token."""
        return self.words[token]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the words of an answer."""
        return " ".join(self.words[token] for token in tokens)


SMALL: Final = Game(numbers=7, guesses=3)
"""A game that a model learns in seconds."""
