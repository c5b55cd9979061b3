"""The token tree: the calls of one session, joined by exact prefix.

What it guarantees: the tree depends only on the set of calls, not on the order in which they were
added; ids are stored once per edge; adding a call that names its parent costs time in proportion
to its new tokens; every sampled token is trained by at most one row.

Why a radix tree over ids: parenthood is then a fact about tokens, so retries, subagents, deleted
turns and compaction need no guessing from texts. Nodes exist where a prompt ends, where an output
ends, and where paths part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from armillary.errors import RecordError
from armillary.record.calls import ModelCall
from armillary.record.rows import TrainingRow
from armillary.record.tokens import EMPTY, ImageSpan, TokenSequence, common_prefix

Role = Literal["main", "subagent", "side", "retry", "undelivered"]
"""`side`: a call without tools in a session that has them (titles, summaries). `retry`: the same
prompt asked again although the reply was good. Only `main` and `subagent` train."""

TRAINED_ROLES: frozenset[Role] = frozenset(("main", "subagent"))

_Key = tuple[int, tuple[int, str, tuple[int, int, int]] | None]


@dataclass(eq=False, slots=True)
class Node:
    """A point in the tree; `edge` leads to it from its parent."""

    edge: TokenSequence
    parent: Node | None
    depth: int
    """Tokens from the root to here."""
    children: dict[_Key, Node] = field(default_factory=dict[_Key, "Node"])
    ends: list[int] = field(default_factory=list[int])
    """Calls whose output ends here."""

    def ancestors(self) -> Iterator[Node]:
        """This node, then its ancestors up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class _Placed:
    call: ModelCall
    prompt: Node
    end: Node


def _key(sequence: TokenSequence) -> _Key:
    """What tells children of one node apart: the first id, and the image it begins, if any."""
    span: ImageSpan | None = sequence.images[0] if sequence.images else None
    if span is not None and span.start == 0:
        return int(sequence.ids[0]), (span.length, span.sha256, span.grid)
    return int(sequence.ids[0]), None


class TokenTree:
    """All calls of one session."""

    def __init__(self) -> None:
        self._root = Node(EMPTY, None, 0)
        self._placed: dict[int, _Placed] = {}

    def __len__(self) -> int:
        return len(self._placed)

    def __contains__(self, index: int) -> bool:
        return index in self._placed

    def add(self, call: ModelCall) -> None:
        """Put `call` into the tree.

        Raises:
            RecordError: its parent is unknown, its prompt length is not what it claims, or its
                index is taken.
        """
        if call.index in self._placed:
            raise RecordError(f"session {call.session} already has a call {call.index}")
        start = self._root
        if call.prompt.parent is not None:
            if call.prompt.parent not in self._placed:
                raise RecordError(
                    f"call {call.index} of session {call.session} continues call "
                    f"{call.prompt.parent}, which is not recorded"
                )
            start = self._placed[call.prompt.parent].end
        prompt = self._insert(start, call.prompt.delta)
        if prompt.depth != call.prompt_length:
            raise RecordError(
                f"call {call.index} of session {call.session}: the prompt has {prompt.depth} "
                f"tokens, {call.prompt_length} were recorded"
            )
        end = self._insert(prompt, TokenSequence(call.output_ids))
        end.ends.append(call.index)
        end.ends.sort()
        self._placed[call.index] = _Placed(call, prompt, end)

    def call(self, index: int) -> ModelCall:
        return self._placed[index].call

    def calls(self) -> list[ModelCall]:
        """All calls in order of arrival."""
        return [self._placed[i].call for i in sorted(self._placed)]

    def replace(self, call: ModelCall) -> None:
        """Swap in new facts about a call (delivery, findings); its tokens must be the same."""
        old = self._placed[call.index]
        same = np.array_equal(old.call.output_ids, call.output_ids)
        if not same or old.call.prompt_length != call.prompt_length:
            raise RecordError(f"call {call.index}: tokens of a recorded call cannot change")
        self._placed[call.index] = _Placed(call, old.prompt, old.end)

    def prompt(self, index: int) -> TokenSequence:
        """The whole prompt of a call."""
        return _path(self._placed[index].prompt)

    def sequence(self, index: int) -> TokenSequence:
        """Prompt and output of a call."""
        return _path(self._placed[index].end)

    def parent(self, index: int) -> int | None:
        """The call whose prompt and output are the longest exact prefix of this call's prompt."""
        placed = self._placed[index]
        for node in placed.prompt.ancestors():
            ends = [i for i in node.ends if i != index and self._placed[i].prompt is not node]
            if ends:
                return ends[0]
        return None

    def leaves(self) -> list[int]:
        """Calls that no other call continues, in order of arrival, one per end point."""
        continued = {self._placed[p].end for p in map(self.parent, self._placed) if p is not None}
        return sorted({p.end.ends[0] for p in self._placed.values() if p.end not in continued})

    def size(self) -> int:
        """Tokens stored, each edge once."""
        return sum(len(node.edge) for node in self._nodes())

    def shape(self) -> frozenset[tuple[bytes, tuple[ImageSpan, ...], tuple[int, ...]]]:
        """A canonical form: every path with the calls that end there."""
        found = ((_path(n), tuple(n.ends)) for n in self._nodes())
        return frozenset((path.ids.tobytes(), path.images, ends) for path, ends in found)

    def roles(self) -> dict[int, Role]:
        """What each call was for."""
        calls = self.calls()
        with_tools = [c for c in calls if c.n_tools]
        leaves = set(self.leaves())
        continued = {self._placed[c.index].prompt for c in calls if c.index not in leaves}

        def role(call: ModelCall) -> Role:
            if not call.delivered:
                return "undelivered"
            if with_tools and not call.n_tools:
                return "side"
            # A malformed reply is no idle retry: the agent asked again because of it, so it must
            # carry the attempt's advantage.
            asked_again = self._placed[call.index].prompt in continued
            if call.index in leaves and asked_again and not call.faults:
                return "retry"
            if with_tools and call.system_digest != with_tools[0].system_digest:
                return "subagent"
            return "main"

        return {call.index: role(call) for call in calls}

    def rows(self, *, attempt: str = "", harness: str = "") -> list[TrainingRow]:
        """Training rows, one per leaf that trains anything, in order of arrival.

        A call shared by several leaves is trained by the first of them only.
        """
        roles = self.roles()
        claimed: set[int] = set()
        rows: list[TrainingRow] = []
        for leaf in self.leaves():
            row = self._row(leaf, roles, claimed, attempt, harness)
            if row is not None:
                rows.append(row)
        return rows

    def _row(
        self, leaf: int, roles: dict[int, Role], claimed: set[int], attempt: str, harness: str
    ) -> TrainingRow | None:
        end = self._placed[leaf].end
        mask = np.zeros(end.depth, dtype=np.bool_)
        logprobs = np.zeros(end.depth, dtype=np.float32)
        path: list[int] = []
        versions: list[int] = []
        for index in sorted({i for n in end.ancestors() for i in n.ends}):
            placed = self._placed[index]
            path.append(index)
            if index in claimed or not _trains(placed.call, roles[index]):
                continue
            claimed.add(index)
            span = slice(placed.prompt.depth, placed.end.depth)
            free = ~mask[span]
            mask[span] |= free
            logprobs[span][free] = placed.call.output_logprobs[free]
            versions += [s.version for s in placed.call.policy]
        if not mask.any():
            return None
        return TrainingRow(
            _path(end), mask, logprobs, attempt=attempt, harness=harness, calls=tuple(path),
            policy_version=min(versions),
        )  # fmt: skip

    def _insert(self, node: Node, sequence: TokenSequence) -> Node:
        """Walk `sequence` from `node`, adding what is missing; the node where it ends."""
        while len(sequence):
            child = node.children.get(_key(sequence))
            if child is None:
                child = Node(sequence, node, node.depth + len(sequence))
                node.children[_key(sequence)] = child
                return child
            shared = common_prefix(child.edge, sequence)
            if shared < len(child.edge):
                child = _split(child, shared)
            node, sequence = child, sequence.slice(shared, len(sequence))
        return node

    def _nodes(self) -> Iterator[Node]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def _split(node: Node, at: int) -> Node:
    """Put a new node `at` tokens down the edge of `node`; the new, upper node."""
    parent = node.parent
    if parent is None:
        raise RecordError("the root has no edge")
    upper = Node(node.edge.slice(0, at), parent, parent.depth + at)
    parent.children[_key(node.edge)] = upper
    node.edge = node.edge.slice(at, len(node.edge))
    node.parent = upper
    upper.children[_key(node.edge)] = node
    return upper


def _path(node: Node) -> TokenSequence:
    edges = [n.edge for n in node.ancestors()][::-1]
    images: list[ImageSpan] = []
    start = 0
    for edge in edges:
        images += [span.moved(start) for span in edge.images]
        start += len(edge)
    return TokenSequence(np.concatenate([edge.ids for edge in edges]), images)


def _trains(call: ModelCall, role: Role) -> bool:
    return call.trainable and call.level == "tokens" and role in TRAINED_ROLES
