"""The game: find a secret number in a few guesses, told higher or lower; and its turns as words, tokens, messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from store.errors import Invalid

HIGHER: Final = "higher"
LOWER: Final = "lower"
FOUND: Final = "found"
BEGIN: Final = 0
"""The token every game begins with."""

_WORDS_BEFORE_NUMBERS: Final = ("begin", HIGHER, LOWER)

Verdict = Literal["higher", "lower", "found"]


@dataclass(frozen=True, slots=True)
class Game:
    """The rules: a secret from 1 to `numbers`, `guesses` to find it. Whoever says anything but a number has lost."""

    numbers: int = 15
    guesses: int = 4

    @property
    def words(self) -> tuple[str, ...]:
        """What can be said, each at the place of its token."""
        return (*_WORDS_BEFORE_NUMBERS, *map(str, range(1, self.numbers + 1)))

    @property
    def longest_prompt(self) -> int:
        """Tokens before the last guess."""
        return 2 * self.guesses - 1

    @property
    def by_luck(self) -> float:
        """How often different guesses find the secret if they ignore the hints."""
        return min(self.guesses / self.numbers, 1.0)

    @property
    def by_halving(self) -> float:
        """How often halving what is left finds it: the best there is."""
        return min((2**self.guesses - 1) / self.numbers, 1.0)

    def judge(self, secret: int, said: str) -> Verdict | None:
        """Return what the guesser is told; None if what it said is no number of the game."""
        if said not in self.words[len(_WORDS_BEFORE_NUMBERS) :]:
            return None
        guess = int(said)
        return FOUND if guess == secret else HIGHER if secret > guess else LOWER

    def messages(self, turns: Sequence[tuple[str, Verdict]]) -> list[dict[str, str]]:
        """Return a game so far, guesses and what they were told, as a chat."""
        asked = f"Find a number from 1 to {self.numbers} in {self.guesses} guesses. I say {HIGHER} or {LOWER}."
        chat = [{"role": "user", "content": asked}]
        for guess, told in turns:
            chat += [{"role": "assistant", "content": guess}, {"role": "user", "content": told}]
        return chat

    def tokens(self, messages: Sequence[Any]) -> list[int]:
        """Return the tokens of a chat: one for its first message, whatever that says, and one for each other.

        Raises:
            Invalid: a message is no word of the game.
        """
        words = self.words
        try:
            said = [message["content"] for message in messages[1:]]
            return [BEGIN, *(words.index(word) for word in said)]
        except (KeyError, TypeError, ValueError):
            raise Invalid("messages", f"say one of {', '.join(words[1:])} each, after the first") from None


SMALL: Final = Game(numbers=7, guesses=3)
"""A game that is learned in seconds."""
