"""The ground floor: what really happened, token by token, and what of it may train.

It changes only when the facts that we keep change. It computes nothing that needs a model and
imports no other room.

Read first: `tokens` (ids and image spans), `calls` (one model call), `tree` (calls joined by exact
prefix), `rows` (what a learner takes), `outcomes` (whether an attempt counts), then `journal` and
`store` (how all of it survives a power cut).
"""
