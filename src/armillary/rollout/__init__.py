"""Attempts, groups, and what their endings mean.

It changes when the way attempts are scheduled, repeated or classified changes. It treats every
harness alike. An attempt that failed through our own fault is data without a reward, never a zero.

Read first: `plan` (attempts, groups, the schedule), `attempt` (one task, one try), `failures`
(whatever escapes, classified once), `scheduler` (many attempts at once).
"""
