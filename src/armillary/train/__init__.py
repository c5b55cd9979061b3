"""From rows to a new policy version.

It changes when a method of learning or a kind of learner is added. It reads the record and nothing
else of a rollout; behaviour log-probabilities come from there.

Read first: `protocol` (the seam), `loop` (rollouts and updates), `grpo` (groups to rows),
`advantages` and `losses` (the mathematics, with sources), `local` (the learner that shares its
weights with the engine).
"""
