"""Reading a run file and the overrides of the command line.

Overrides are `--section.key value` or `--section.key=value`; frequent ones have the short names of
`ALIASES`. Every complaint says where: the line of the file, or the option.
"""

from __future__ import annotations

import copy
import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from armillary.cli.runfile import RunFile
from armillary.errors import ConfigError

ALIASES = {
    "--name": "name",
    "--seed": "seed",
    "--model": "model",
    "--engine": "engine.name",
    "--sandbox": "sandbox.name",
    "--harness": "harness.names",
    "--steps": "train.steps",
    "-n": "eval.tasks",
}
"""Short option -> key of the run file."""


def load_run(
    file: Path | None, overrides: Sequence[str], preset: dict[str, Any] | None = None
) -> RunFile:
    """The effective run file: defaults, then `preset`, then the file, then overrides.

    Raises:
        ConfigError: anything in it is wrong.
    """
    values, text, given = _gather(file, overrides, preset)
    return _validated(values, file, text, given)


def load_kept_run(file: Path | None, overrides: Sequence[str]) -> RunFile:
    """As `load_run`; without `file`, what the run's own folder keeps takes its place.

    Raises:
        ConfigError: anything in it is wrong.
    """
    if file is None:
        # Only what names the folder counts here: the rest may fit together with kept values only.
        values, text, given = _gather(None, overrides, None)
        named = {key: values[key] for key in ("name", "seed") if key in values}
        if isinstance(values.get("engine"), dict) and "name" in values["engine"]:
            named["engine"] = {"name": values["engine"]["name"]}
        kept = _validated(named, None, text, given).folder / "run.toml"
        file = kept if kept.exists() else None
    return load_run(file, overrides)


def _gather(
    file: Path | None, overrides: Sequence[str], preset: dict[str, Any] | None
) -> tuple[dict[str, Any], str, dict[str, str]]:
    """All values merged, the file's text, and key -> option as it was written."""
    text = ""
    values: dict[str, Any] = copy.deepcopy(preset or {})
    if file is not None:
        text = _read(file)
        try:
            _merge(values, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file}: {error}") from error
    given: dict[str, str] = {}
    for option, key, raw in parse_overrides(overrides):
        given[key] = option
        _set(values, key, _value(key, raw))
    return values, text, given


def _validated(
    values: dict[str, Any], file: Path | None, text: str, given: dict[str, str]
) -> RunFile:
    try:
        return RunFile.model_validate(values)
    except ValidationError as error:
        problems = [_explain(e, file, text, given) for e in error.errors()]
        raise ConfigError("\n".join(problems)) from error


def parse_overrides(tokens: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(option as written, key, value as written).

    Raises:
        ConfigError: an option has no value, or something is no option.
    """
    queue = list(tokens)
    while queue:
        token = queue.pop(0)
        option, equals, value = token.partition("=")
        key = ALIASES.get(option, option.removeprefix("--") if option.startswith("--") else "")
        if not key:
            raise ConfigError(
                f"{token!r} is no option; options are --section.key VALUE or one of "
                f"{', '.join(ALIASES)}. A run file comes first: armillary VERB RUN.toml"
            )
        if not equals:
            if not queue:
                raise ConfigError(f"{option} needs a value")
            value = queue.pop(0)
        yield option, key, value


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise ConfigError(f"run file {file} cannot be read: {error.strerror}") from error


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--{key}: {section!r} is a value, not a section")
    values[last] = value


def _value(key: str, raw: str) -> Any:
    """An option's value by the kind of its key: text as written, a list by commas, else TOML."""
    kind = _annotation(key)
    if _is_text(kind):
        return raw
    if get_origin(kind) is list and not raw.startswith("["):
        return [part for part in raw.split(",") if part]
    try:
        return tomllib.loads(f"x = {raw}")["x"]
    except tomllib.TOMLDecodeError:
        return raw


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    return kind is str


def _annotation(key: str) -> Any:
    kind: Any = RunFile
    for part in key.split("."):
        fields = kind.model_fields if _is_model(kind) else {}
        if part not in fields:
            return None
        kind = fields[part].annotation
    return kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _explain(error: ErrorDetails, file: Path | None, text: str, given: dict[str, str]) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    where = _where(path, file, text, given)
    if error["type"] == "extra_forbidden":
        return f"{where}unknown key `{key}`{_nearest(path)}"
    message = error["msg"].removeprefix("Value error, ")
    shown = f"`{key}` = {error['input']!r}: " if key else ""
    return f"{where}{shown}{message}"


def _where(path: list[str], file: Path | None, text: str, given: dict[str, str]) -> str:
    for key, option in given.items():
        parts = key.split(".")
        if path[: len(parts)] == parts:
            return f"{option}: "
    line = _line_of(path, text)
    if file is None:
        return ""
    return f"{file}:{line}: " if line else f"{file}: "


def _line_of(path: list[str], text: str) -> int:
    """Line of a key in TOML text, from 1; 0 if it is not written there."""
    section: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\]]+)\]", line):
            section = [part.strip().strip('"') for part in header[1].split(".")]
            if section == path:
                return number
        elif key := re.match(r'\s*("?)([\w.-]+)\1\s*=', line):
            full = [*section, *key[2].split(".")]
            if full == path[: len(full)]:
                return number
    return 0


def _nearest(path: list[str]) -> str:
    kind: Any = RunFile
    for part in path[:-1]:
        kind = kind.model_fields[part].annotation if _is_model(kind) else None
    names = list(kind.model_fields) if _is_model(kind) else []
    close = difflib.get_close_matches(path[-1], names, 1, 0.5)
    if close:
        return f"; did you mean `{'.'.join([*path[:-1], close[0]])}`?"
    return f"; known here: {', '.join(sorted(names))}" if names else ""
