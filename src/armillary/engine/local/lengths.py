"""Grouping sequences of unlike length into padded batches.

One forward pass has a fixed cost, worth some number of tokens; padding costs tokens. The grouping
splits where padding would cost more than another pass. Engine and learner share it.
"""

from __future__ import annotations

from collections.abc import Sequence


def group_by_length(
    lengths: Sequence[int], *, pass_cost: int, most_tokens: int, most_rows: int = 1 << 30
) -> list[list[int]]:
    """Indices of `lengths` in groups of like length, shortest first.

    `pass_cost`: tokens that one more pass is worth. `most_tokens`: padded tokens of a group; a
    single longer sequence is a group of its own.
    """
    groups: list[list[int]] = []
    padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        length = lengths[index]
        if groups:
            group = groups[-1]
            more = padding + len(group) * (length - lengths[group[-1]])
            fits = (len(group) + 1) * length <= most_tokens and len(group) < most_rows
            if fits and more <= pass_cost:
                group.append(index)
                padding = more
                continue
        groups.append([index])
        padding = 0
    return groups
