"""Token ids in, token ids and log-probabilities out.

It changes when another way of sampling is added. An engine knows nothing of text, tools or
rewards, and what stands above this room never learns which engine it is.

Read first: `protocol` (the seam), `scripted` (the smallest engine), then `local` (batched sampling
in a process of its own).
"""
