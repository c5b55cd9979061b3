"""A task's Dockerfile, read as far as a sandbox without images can honour it.

The base image is ignored: every sandbox has this system's own programs. Files, folders, modes,
variables and the work folder are taken over exactly. What would need a network, another image or
a real build is refused with the line that asks for it, since leaving it out would grade a task
that nobody wrote. Nothing is executed: the few shell commands that make folders and set modes are
read, and any other is refused.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from armillary.errors import TaskError
from armillary.sandbox.environment import BASE_PATH
from armillary.sandbox.protocol import WORKDIR, File, Spec

_ALWAYS_WRITABLE = ("/workdir", "/tmp", "/home")
_PROGRAMS = PurePosixPath("/usr/local")
_SYSTEM = ("usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "dev", "proc", "sys")
_NO_EFFECT = ("LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "STOPSIGNAL", "MAINTAINER", "USER", "SHELL",
              "HEALTHCHECK")  # fmt: skip
_NOT_READ = {
    "docker-compose.yaml": "several containers need a container backend",
    "docker-compose.yml": "several containers need a container backend",
    ".dockerignore": "is not honoured here; leave it out and COPY what is needed by name",
}
_VARIABLE = re.compile(r"\\(\$)|\$(?:\{(\w+)(?::(-|\+)([^}]*))?\}|(\w+))")


class Instruction(NamedTuple):
    """One instruction with its continuation lines joined; `line` counts from 1."""

    line: int
    name: str
    text: str


def image_spec(environment_dir: Path) -> Spec:
    """What a sandbox for the task folder's `environment/` starts with.

    Raises:
        TaskError: there is no Dockerfile, or it asks for what a sandbox cannot do; the text names
            file, line and instruction.
    """
    dockerfile = environment_dir / "Dockerfile"
    for name, why in _NOT_READ.items():
        if (environment_dir / name).exists():
            raise TaskError(f"{environment_dir / name}: {why}")
    try:
        text = dockerfile.read_text()
    except OSError as error:
        raise TaskError(f"a task's environment needs a Dockerfile: {error}") from error
    build = _Build(environment_dir, dockerfile)
    for instruction in instructions(text):
        build.apply(instruction)
    return build.spec()


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile, comments and continuations resolved."""
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip().startswith("#") or (pending and not raw.strip()):
            continue
        first = first if pending else number
        line = f"{pending} {raw.strip()}".strip()
        if line.endswith("\\"):
            pending = line[:-1].rstrip() or " "
            continue
        pending = ""
        if line:
            yield _instruction(first, line)
    if pending.strip():
        yield _instruction(first, pending.strip())


def _instruction(number: int, line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    return Instruction(number, name.upper(), rest.strip())


@dataclass
class _Build:
    """The state of an image while its instructions are read."""

    context: Path
    dockerfile: Path
    files: dict[str, File] = field(default_factory=dict[str, File])
    env: dict[str, str] = field(default_factory=dict[str, str])
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    folders: set[PurePosixPath] = field(default_factory=set[PurePosixPath])
    workdir: PurePosixPath = field(default_factory=lambda: PurePosixPath(WORKDIR))
    stages: int = 0

    def apply(self, instruction: Instruction) -> None:
        if instruction.name in _NO_EFFECT:
            return
        handlers: dict[str, Callable[[Instruction], None]] = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "WORKDIR": self._workdir,
            "VOLUME": self._volume,
            "COPY": self._copy,
            "ADD": self._copy,
            "RUN": self._run,
        }
        if instruction.name not in handlers:
            self._refuse(instruction, "is not known here")
        handlers[instruction.name](instruction)

    def spec(self) -> Spec:
        """The sandbox's start. Everything below a top folder that is used is writable."""
        used = {*self.folders, self.workdir, *(PurePosixPath(path).parent for path in self.files)}
        used = {folder for folder in used if not folder.is_relative_to(_PROGRAMS)}
        tops = {PurePosixPath("/", folder.parts[1]) for folder in used if len(folder.parts) > 1}
        folders = {str(folder) for folder in used | tops} - {"/", *_ALWAYS_WRITABLE}
        return Spec(
            files=self.files, env=self.env, folders=sorted(folders), workdir=str(self.workdir)
        )

    def _refuse(self, at: Instruction, why: str) -> NoReturn:
        raise TaskError(
            f"{self.dockerfile}:{at.line}: `{at.name} {at.text}` {why}; run this task in a "
            "container backend, or put what it needs into environment/ and COPY it"
        )

    # -- instructions --------------------------------------------------------------------------

    def _from(self, at: Instruction) -> None:
        self.stages += 1
        if self.stages > 1:
            self._refuse(at, "starts a second build stage, which needs a real build")

    def _arg(self, at: Instruction) -> None:
        name, _, default = self._expand(at.text).partition("=")
        self.arguments[name] = _unquoted(default)

    def _env(self, at: Instruction) -> None:
        first, *rest = at.text.split(None, 1)
        if "=" not in first:  # the old form: one name, then its value
            self.env[first] = self._expand(rest[0]) if rest else ""
            return
        for pair in self._words(at):
            name, equals, value = pair.partition("=")
            if not equals:
                self._refuse(at, f"has no `=` in {pair!r}")
            self.env[name] = value

    def _workdir(self, at: Instruction) -> None:
        self.workdir = self._path(self._expand(_unquoted(at.text)), at)
        self.folders.add(self.workdir)

    def _volume(self, at: Instruction) -> None:
        self.folders |= {self._path(word, at) for word in self._words(at)}

    def _copy(self, at: Instruction) -> None:
        words = self._words(at)
        flags = [word for word in words if word.startswith("--")]
        *sources, target = [word for word in words if not word.startswith("--")] or [""]
        if not sources:
            self._refuse(at, "names no source or no target")
        mode = self._copy_mode(flags, at)
        found = [path for source in sources for path in self._sources(source, at)]
        into_folder = target.endswith("/") or len(found) > 1 or self._is_folder(target, at)
        for source in found:
            self._take(source, self._path(target, at), into_folder=into_folder, mode=mode)

    def _copy_mode(self, flags: list[str], at: Instruction) -> int | None:
        mode: int | None = None
        for flag in flags:
            name, _, value = flag.partition("=")
            if name == "--chmod" and re.fullmatch("[0-7]{3,4}", value):
                mode = int(value, 8)
            elif name not in ("--chown", "--link"):
                self._refuse(at, f"uses {name}, which needs a real build")
        return mode

    def _sources(self, pattern: str, at: Instruction) -> list[Path]:
        if "://" in pattern or pattern.startswith("git@"):
            self._refuse(at, "needs a network")
        if at.name == "ADD" and re.search(r"\.(tar|tgz|tbz2?|txz|tar\.\w+)$", pattern):
            self._refuse(at, "unpacks an archive, which is not supported; use COPY")
        root = self.context.resolve()
        plain = pattern.lstrip("/") or "."
        found = sorted(root.glob(plain)) if re.search(r"[*?\[]", plain) else [root / plain]
        for path in found:
            if not path.resolve().is_relative_to(root):
                self._refuse(at, "leaves the environment folder")
        if not found or not all(path.exists() for path in found):
            self._refuse(at, f"names {pattern}, which is not in {self.context}")
        return found

    def _take(
        self, source: Path, target: PurePosixPath, *, into_folder: bool, mode: int | None
    ) -> None:
        if source.is_dir():
            self.folders.add(target)
            for path in sorted(source.rglob("*")):
                inside = target / path.relative_to(source).as_posix()
                if path.is_dir():
                    self.folders.add(inside)
                else:
                    self.files[str(inside)] = _file(path, mode)
            return
        place = target / source.name if into_folder else target
        self.files[str(place)] = _file(source, mode)

    def _run(self, at: Instruction) -> None:
        try:
            lexer = shlex.shlex(at.text, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError as error:
            self._refuse(at, f"cannot be read: {error}")
        command: list[str] = []
        for word in [*words, "&&"]:
            if word in ("|", "||", "&", ">", ">>", "<", "<<", "(", ")"):
                self._refuse(at, f"uses `{word}`, which only a shell can do")
            if word in ("&&", ";"):
                self._shell_command(command, at)
                command = []
            else:
                command.append(self._expand(word))

    def _shell_command(self, words: list[str], at: Instruction) -> None:
        name, *arguments = words or ["true"]
        plain = [word for word in arguments if not word.startswith("-")]
        if name == "mkdir":
            self.folders |= {self._path(word, at) for word in plain}
        elif name == "chmod" and len(plain) > 1:
            for word in plain[1:]:
                self._chmod(plain[0], self._path(word, at), at)
        elif name == "touch":
            for word in plain:
                self.files.setdefault(str(self._path(word, at)), File(b""))
        elif name not in ("true", ":"):
            self._refuse(at, f"would execute `{name}` in an image that is not there")

    def _chmod(self, mode: str, path: PurePosixPath, at: Instruction) -> None:
        below = [name for name in self.files if PurePosixPath(name).is_relative_to(path)]
        if not below and path not in self.folders:
            self._refuse(at, f"changes {path}, which no earlier line puts there")
        for name in below:
            data, before = self.files[name]
            if re.fullmatch("[0-7]{3,4}", mode):
                self.files[name] = File(data, int(mode, 8))
            elif mode in ("+x", "a+x", "ugo+x", "u+x"):
                self.files[name] = File(data, before | 0o111)
            else:
                self._refuse(at, f"has a mode {mode!r} that is not understood; use digits")

    # -- words and paths -----------------------------------------------------------------------

    def _words(self, at: Instruction) -> list[str]:
        """Words of an instruction, also of its JSON form, with variables put in."""
        text = at.text
        if text.startswith("["):
            text = text.strip("[]").replace(",", " ")
        try:
            return shlex.split(self._expand(text))
        except ValueError as error:
            self._refuse(at, f"cannot be read: {error}")

    def _expand(self, text: str) -> str:
        known = {"PATH": BASE_PATH} | self.arguments | self.env

        def value(match: re.Match[str]) -> str:
            escaped, braced, operator, other, bare = match.groups()
            if escaped:
                return "$"
            have = known.get(braced or bare, "")
            if operator == "-":
                return have or other
            return (other if have else "") if operator == "+" else have

        return _VARIABLE.sub(value, text)

    def _path(self, text: str, at: Instruction) -> PurePosixPath:
        path = self.workdir / text.removeprefix("./")
        parts: list[str] = []
        for part in path.parts:
            if part == "..":
                parts = parts[:-1] if len(parts) > 1 else parts
            elif part != ".":
                parts.append(part)
        path = PurePosixPath(*parts)
        inside_programs = path.is_relative_to(_PROGRAMS)
        if len(path.parts) < 2 or (path.parts[1] in _SYSTEM and not inside_programs):
            self._refuse(at, f"writes to {path}, which belongs to the system")
        return path

    def _is_folder(self, text: str, at: Instruction) -> bool:
        return text in (".", "..") or self._path(text, at) in {self.workdir, *self.folders}


def _unquoted(text: str) -> str:
    parts = shlex.split(text) if text else []
    return " ".join(parts)


def _file(path: Path, mode: int | None) -> File:
    executable = path.stat().st_mode & stat.S_IXUSR
    return File(path.read_bytes(), mode if mode is not None else 0o755 if executable else 0o644)
