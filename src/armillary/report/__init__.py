"""Results as a person reads them: one HTML page, figures, a Parquet table.

It changes when the telling changes. It computes no result of its own; each figure and table comes
from `evaluate`.

Read first: `data` (all that goes in), `build` (all that comes out), `figures` and `tables`.
"""
