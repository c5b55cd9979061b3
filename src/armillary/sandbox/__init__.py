"""Where an agent's commands run.

It changes when another way of isolating commands is added. An attempt sees its own files,
processes and network only; whatever is lost is a `SandboxError` with its kind.

Read first: `protocol` (the seam), `registry` (what stands behind it), `bubblewrap` (the local
sandbox), `inside` (the program that runs in it, standard library only).
"""
