"""Who owns the loop around the model.

It changes when an agent program is added or its wiring moves. White-box or black-box, every
harness ends with the same `Ending`; an agent program runs unmodified from its own locked
environment.

Read first: `protocol` (the seam), `loop` (our own tool loop), `mini_swe_agent` (a real agent
program), `install` (its environment).
"""
