"""The command line: verbs, run files, progress, and the stages that a verb runs.

Read `verbs.py` for what a user can say, `runfile.py` for what can be set, `pipeline.py` for the
stages of a run.
"""

from armillary.cli.verbs import main

__all__ = ["main"]
