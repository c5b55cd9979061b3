"""The local learner: trains the very tensors that the local engine samples from.

Read first: `client` (this side of the socket, no torch), then `learner` (the other side) and
`tiny` (the embedded model).
"""
