"""A scripted policy for labbook tasks, and the work folder it acts in.

The policy is careless on purpose: in part of its demonstrations it guesses a file name without
looking, and sometimes it takes a wrong operation; after an error it answers 0. A model that
imitates it is right less than half of the time, so reinforcement learning has something to find.

`EmulatedShell` answers the commands of a demonstration without a process; a test holds its output
equal to the real commands in a real sandbox.
"""

from __future__ import annotations

import random

from armillary.tasks.data.labbook import OPERATIONS, Labbook, aggregate
from armillary.tasks.protocol import CommandResult, Demonstration, DemonstrationStyle

GUESSED_FILE = "data.csv"
PHRASES = (
    "agg: cannot open ", "agg: no column ", "agg: unknown op ", "agg: no rows",
    "head: cannot open ", " for reading: No such file or directory", "/bin/sh: 1: ",
    ": not found", " > answer.txt",
)  # fmt: skip
"""Fixed parts of commands and their output."""


def demonstrate(book: Labbook, style: DemonstrationStyle, seed: int) -> Demonstration:
    """Play one demonstration; see `tasks.protocol.Demonstration`."""
    rng = random.Random(f"{seed}/{book.seed}")
    file = GUESSED_FILE
    if rng.random() >= style.careless:
        file = (yield "ls").strip()
        yield f"head -2 {file}"
    wrong = rng.random() < style.wrong_operation
    operation = rng.choice(list(OPERATIONS)) if wrong else book.operation
    printed = yield f"agg {file} {operation} {book.column} {book.category} {book.value}"
    return "0" if printed.startswith("agg:") else printed.strip()


class EmulatedShell:
    """The work folder of one attempt, for `ls`, `head -2`, `agg` and `echo X > answer.txt`."""

    def __init__(self, book: Labbook) -> None:
        self._book = book
        self.answer: str | None = None
        """Contents of `answer.txt`."""

    def run(self, command: str) -> CommandResult:
        """Output and exit status of one command line."""
        book, words = self._book, command.split(" ")
        match words:
            case ["ls"]:
                names = [book.file] if self.answer is None else ["answer.txt", book.file]
                return CommandResult("".join(f"{n}\n" for n in sorted(names)), 0)
            case ["head", "-2", name]:
                return self._head(name)
            case ["agg", name, operation, column, category, value]:
                if name != book.file:
                    return CommandResult(f"agg: cannot open {name}\n", 1)
                return CommandResult(*aggregate(book, operation, column, category, value))
            case ["agg", *_]:
                return CommandResult("agg: usage: agg FILE OP COLUMN CATEGORY VALUE\n", 1)
            case ["echo", value, ">", "answer.txt"]:
                self.answer = value + "\n"
                return CommandResult("", 0)
            case ["echo", *rest]:
                return CommandResult(" ".join(rest) + "\n", 0)
            case _:
                return CommandResult(f"/bin/sh: 1: {words[0]}: not found\n", 127)

    def _head(self, name: str) -> CommandResult:
        if name != self._book.file:
            why = "No such file or directory"
            return CommandResult(f"head: cannot open '{name}' for reading: {why}\n", 1)
        return CommandResult("\n".join(self._book.csv.split("\n")[:2]) + "\n", 0)
