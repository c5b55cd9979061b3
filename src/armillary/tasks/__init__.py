"""What an agent is asked to do, and how its answer is graded.

It changes when a family of tasks is added or a task folder gains a part. A task is a folder that
stands alone, with its grader and its gold answer out of the agent's reach.

Read first: `protocol` (the seam) and `folder` (the six files of a task), then `data` (the family
that ships).
"""
