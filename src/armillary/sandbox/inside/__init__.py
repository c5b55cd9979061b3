"""The half of the bubblewrap sandbox that runs inside it.

These files are mounted into the box as one small package and run under whichever Python the box
has (3.9 or newer), also that of an agent program's environment. So they import the standard library
and each other by relative name, and nothing else. `wire` is used by the driver too.

Order of a run: `starter` (one per box) forks; the child becomes `server` (process 1 of one
attempt) after `view` and `confine` have given it its own root and taken its rights away.
"""
