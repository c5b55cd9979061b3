"""The local engine: batched decoding over unmodified `transformers` models, in its own process.

Read first: `client` (this side of the socket, no torch), then `server`, `scheduler` and `decoder`
(the other side).
"""
