"""How good a checkpoint is, and how sure we are.

It changes when a question asked of results changes. Every number carries its denominator and an
interval over tasks; ungraded attempts are counted, never dropped.

Read first: `attempts` (one flat record per attempt), `statistics` (pass@1, gains, savings),
`summary` (the JSON object that a run prints).
"""
