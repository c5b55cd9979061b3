"""The model a run works with: its folder, tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from armillary.capture.session import ParserFactory
from armillary.chat.messages import Message, text_of
from armillary.chat.parser import HermesParser
from armillary.chat.template import HermesTemplate, call_text
from armillary.chat.tokenizer import Tokenizer
from armillary.chat.train_tokenizer import train_tokenizer
from armillary.errors import ConfigError
from armillary.harness.protocol import Harness
from armillary.tasks.folder import Task
from armillary.tasks.protocol import DemonstrationStyle, TaskFamily
from armillary.train.demonstrations import demonstrate

TOKENIZER_TASKS = 400
"""Demonstrations per harness that the tiny model's tokenizer is trained on."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model folder with what turns its text to ids and back."""

    folder: Path
    tokenizer: Tokenizer
    template: HermesTemplate

    @classmethod
    def load(cls, folder: Path) -> ModelFiles:
        tokenizer = Tokenizer.load(folder)
        return cls(folder, tokenizer, HermesTemplate(tokenizer))

    @property
    def parser(self) -> ParserFactory:
        return lambda mint: HermesParser(self.tokenizer, mint)


def pretrained_folder(model: str, revision: str) -> Path:
    """The folder of a model that is not ours.

    Raises:
        ConfigError: it is not on this machine; the message has the command that brings it.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    here = f"models/{folder.name or 'NAME'}"
    fetch = f"hf download {model} --revision {revision or 'REVISION'} --local-dir {here}"
    raise ConfigError(
        f"model = {model!r} is not a model folder on this machine; fetch it first: {fetch}, "
        f'and then set model = "{here}"'
    )


def make_tokenizer(
    folder: Path,
    tasks: Sequence[Task],
    family: TaskFamily,
    harnesses: Sequence[Harness],
    seed: int,
) -> ModelFiles:
    """Train the tiny model's tokenizer on demonstrations of `tasks` in every harness."""
    phrases = [*HermesTemplate.phrases, *family.phrases()]
    for harness in harnesses:
        phrases += harness.phrases()
    texts = _texts(tasks[:TOKENIZER_TASKS], family, harnesses, seed)
    train_tokenizer(texts, phrases, folder)
    return ModelFiles.load(folder)


def _texts(
    tasks: Sequence[Task], family: TaskFamily, harnesses: Sequence[Harness], seed: int
) -> Iterator[str]:
    for task in tasks:
        for harness in harnesses:
            messages, _ = demonstrate(task, family, harness, DemonstrationStyle(), seed)
            for message in messages:
                yield from _message_texts(message)


def _message_texts(message: Message) -> Iterator[str]:
    yield text_of(message.content)
    for call in message.tool_calls:
        yield call_text(call)
