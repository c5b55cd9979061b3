"""Reading a task's Dockerfile into what a sandbox starts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.errors import TaskError
from armillary.sandbox.dockerfile import Instruction, image_spec, instructions
from armillary.sandbox.protocol import File, Spec


def _spec(folder: Path, text: str) -> Spec:
    (folder / "Dockerfile").write_text(text)
    return image_spec(folder)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_bytes(b"a")
    (tmp_path / "data" / "deep").mkdir()
    (tmp_path / "data" / "deep" / "b.csv").write_bytes(b"b")
    tool = tmp_path / "tool.sh"
    tool.write_bytes(b"#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "note.txt").write_bytes(b"n")
    return tmp_path


def test_continuations_comments_and_case_are_resolved() -> None:
    text = "# syntax=x\nfrom  debian\n\nRUN mkdir a \\\n  # inside\n\n  && mkdir b\nworkdir /x\n"
    assert list(instructions(text)) == [
        Instruction(2, "FROM", "debian"),
        Instruction(4, "RUN", "mkdir a && mkdir b"),
        Instruction(8, "WORKDIR", "/x"),
    ]


def test_a_usual_task(context: Path) -> None:
    spec = _spec(
        context,
        "FROM python:3.12-slim\nWORKDIR /workdir\nENV MODE=fast NAME='a b'\n"
        "COPY data/ /workdir/\nCOPY --chmod=700 tool.sh /usr/local/bin/tool\n",
    )
    assert spec.files == {
        "/workdir/a.csv": File(b"a", 0o644),
        "/workdir/deep/b.csv": File(b"b", 0o644),
        "/usr/local/bin/tool": File(b"#!/bin/sh\n", 0o700),
    }
    assert spec.env == {"MODE": "fast", "NAME": "a b"}
    assert spec.workdir == "/workdir"
    assert list(spec.folders) == ["/workdir/deep"]


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("COPY note.txt .", ["/app/note.txt"]),
        ("COPY note.txt other", ["/app/other"]),
        ("COPY note.txt sub/", ["/app/sub/note.txt"]),
        ("COPY note.txt tool.sh /x", ["/x/note.txt", "/x/tool.sh"]),
        ("COPY data /y", ["/y/a.csv", "/y/deep/b.csv"]),
        ("COPY *.txt ./", ["/app/note.txt"]),
        ('COPY ["note.txt", "/z z/"]', ["/z z/note.txt"]),
        ("ADD note.txt ../n", ["/n"]),
        ("COPY --chown=agent:agent data/a.csv $PLACE/c", ["/place/c"]),
        ("COPY data/a.csv ${NONE:-/other}/c", ["/other/c"]),
    ],
)
def test_where_files_go(context: Path, line: str, paths: list[str]) -> None:
    spec = _spec(context, f"FROM x\nENV PLACE=/place\nWORKDIR /app\n{line}\n")
    assert sorted(spec.files) == paths


def test_folders_modes_and_variables(context: Path) -> None:
    spec = _spec(
        context,
        "ARG TOP=/srv\nFROM x\nENV HOME_DIR $TOP/home\nENV PATH=/opt/bin:$PATH\nVOLUME /data\n"
        "COPY note.txt /opt/bin/run\n"
        "RUN mkdir -p ${TOP}/a /workdir/empty && chmod +x /opt/bin/run ; touch /data/t\n"
        'USER agent\nCMD ["bash"]\nWORKDIR sub\n',
    )
    assert spec.env == {"HOME_DIR": "/srv/home", "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin"}
    assert spec.files["/opt/bin/run"].mode == 0o755
    assert spec.files["/data/t"] == File(b"")
    assert spec.workdir == "/workdir/sub"
    assert {"/srv", "/srv/a", "/opt", "/data", "/workdir/empty"} <= set(spec.folders)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN apt-get install -y jq", "would execute `apt-get`"),
        ("RUN mkdir a && pip install x", "would execute `pip`"),
        ("RUN mkdir a | true", "only a shell"),
        ("FROM other", "second build stage"),
        ("COPY --from=build /x /x", "real build"),
        ("ADD https://host/x /x", "network"),
        ("ADD data.tar.gz /x", "archive"),
        ("COPY missing.txt /x", "missing.txt"),
        ("COPY ../secret /x", "leaves the environment folder"),
        ("COPY note.txt /etc/motd", "belongs to the system"),
        ("RUN chmod 644 /nowhere", "no earlier line"),
        ("ONBUILD RUN x", "not known"),
        ("ENV A=1 B", "no `=`"),
        ("COPY note.txt", "no source"),
        ("COPY 'note.txt /x", "cannot be read"),
    ],
)
def test_what_a_sandbox_cannot_do_is_refused_by_line(context: Path, line: str, why: str) -> None:
    with pytest.raises(TaskError) as caught:
        _spec(context, f"FROM x\n\n{line}\n")
    assert f"Dockerfile:3: `{line.split(maxsplit=1)[0]}" in str(caught.value)
    assert why in str(caught.value)


def test_what_is_missing_or_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="Dockerfile"):
        image_spec(tmp_path)
    (tmp_path / "docker-compose.yaml").touch()
    with pytest.raises(TaskError, match="container backend"):
        _spec(tmp_path, "FROM x\n")
