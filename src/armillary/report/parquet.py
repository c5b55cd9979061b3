"""Attempts as one Parquet table: a row per attempt, a column per field.

What it guarantees: reading back gives equal records. The schema's name and version are in the
file's metadata, and a file of another schema or a newer version is refused by name. Why an explicit
schema: inferred ones change with the data (a column of only nulls has no type).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from armillary.errors import RecordError
from armillary.evaluate.attempts import AttemptResult

SCHEMA_KEY = b"armillary.schema"
SCHEMA_NAME = "attempts"
SCHEMA_VERSION = 1

_TEXT = (
    "attempt_id",
    "stage",
    "split",
    "task",
    "harness",
    "group",
    "stop_reason",
    "failure_kind",
    "failure_detail",
)
_FLAGS = ("graded", "correct")
_REALS = ("reward", "seconds", "cpu_seconds")
_NULLABLE = ("reward", "correct", "stop_reason", "failure_kind")


def schema() -> pa.Schema:
    """Columns in the order of `AttemptResult`; counts are int64."""
    version = f"{SCHEMA_NAME}/{SCHEMA_VERSION}".encode()
    fields = [
        pa.field(name, _type(name), nullable=name in _NULLABLE)
        for name in AttemptResult.__struct_fields__
    ]
    return pa.schema(fields, metadata={SCHEMA_KEY: version})


def write_attempts(path: Path, attempts: Sequence[AttemptResult]) -> None:
    """Write `path`, replacing it only when the new file is whole."""
    rows = [_row(attempt) for attempt in attempts]
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema()), part, compression="zstd")
    part.replace(path)


def read_attempts(path: Path) -> list[AttemptResult]:
    """The records of a file that `write_attempts` made.

    Raises:
        RecordError: the file has no schema mark, or one that this version cannot read.
    """
    table = pq.read_table(path)
    mark = (table.schema.metadata or {}).get(SCHEMA_KEY, b"").decode()
    name, _, version = mark.partition("/")
    if name != SCHEMA_NAME or not version.isdigit() or int(version) > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema '{mark or 'none'}', this version reads {SCHEMA_NAME}/1 to "
            f"{SCHEMA_NAME}/{SCHEMA_VERSION}: write it again with `armillary report`, or install "
            "the version that wrote it"
        )
    return [msgspec.convert(row, AttemptResult) for row in table.to_pylist()]


def _row(attempt: AttemptResult) -> dict[str, object]:
    row = msgspec.structs.asdict(attempt)
    # A failure may quote a file name whose bytes are no text; such a byte becomes "?".
    row["failure_detail"] = attempt.failure_detail.encode("utf-8", "replace").decode()
    return row


def _type(name: str) -> pa.DataType:
    if name in _TEXT:
        return pa.string()
    if name in _FLAGS:
        return pa.bool_()
    return pa.float64() if name in _REALS else pa.int64()
