"""Who runs: calls wait in one fair queue, get rows, and leave their caches for the next turn.

What it guarantees: first come, first served (a call with many branches is not overtaken while it
waits for room); every token goes out exactly once, tagged with the policy version that sampled it;
a conversation that only grew is never prefilled twice while its row is kept. Rows that run and
rows that are kept share `slots`; the row unused for longest makes room.

Synchronous on purpose: the server calls `work` between socket reads, the benchmark calls it in a
bare loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from armillary.engine.local.calls import Call, Emission
from armillary.engine.local.decoder import Admission, Decoder
from armillary.engine.local.parked import Parked, ParkedRows
from armillary.engine.protocol import Finish, Span, Usage
from armillary.errors import EngineError
from armillary.record.calls import StopReason


@dataclass(slots=True)
class _Running:
    call: Call
    branch: int
    cached: int
    version: int
    """Of the weights that computed its cache; an older one is not kept."""


@dataclass(slots=True)
class _Plan:
    call: Call
    kept: Parked | None
    admissions: list[Admission] = field(default_factory=list[Admission])


class Scheduler:
    """Runs calls on a decoder."""

    def __init__(self, decoder: Decoder, *, slots: int) -> None:
        self.version = 0
        """Policy version of the weights now in the model."""
        self._decoder = decoder
        self._slots = slots
        self._queue: deque[Call] = deque()
        self._rows: list[_Running] = []
        self._parked = ParkedRows()
        self._out: list[Emission] = []

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._queue or self._rows)

    @property
    def running(self) -> int:
        """Branches being sampled."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """Calls in the queue."""
        return len(self._queue)

    @property
    def kept(self) -> int:
        """Conversations whose cache waits for their next turn."""
        return len(self._parked)

    def submit(self, call: Call) -> None:
        """Queue a call.

        Raises:
            EngineError: it can never run.
        """
        if not 1 <= call.n <= self._slots:
            raise EngineError(
                f"{call.n} branches asked for; this engine has {self._slots} slots",
                retryable=False,
            )
        if not len(call.prompt):
            raise EngineError("the prompt is empty", retryable=False)
        model = self._decoder.model
        if int(call.prompt.min()) < 0 or int(call.prompt.max()) >= len(model.ban):
            raise EngineError(f"a prompt id is outside 0 .. {len(model.ban) - 1}", retryable=False)
        if call.sampling.max_tokens < 1:
            raise EngineError("max_tokens must be at least 1", retryable=False)
        self._queue.append(call)

    def cancel(self, call_id: int) -> None:
        """Stop a call; nothing more comes out of it."""
        self._queue = deque(c for c in self._queue if c.id != call_id)
        for row in reversed(range(len(self._rows))):
            if self._rows[row].call.id == call_id:
                self._drop(row)
        self._out = [e for e in self._out if e.call != call_id]

    def end_session(self, session: str) -> None:
        self._parked.end_session(session)

    def weights_changed(self, version: int) -> None:
        """The model's weights are now those of `version`: kept caches are stale.

        Running rows go on under the new version; what they sampled before keeps the old one.
        """
        self._collect(range(len(self._rows)))
        self._parked.clear()
        self.version = version

    def work(self) -> bool:
        """Admit what fits and sample one token for every running row; whether a call ended."""
        ended = self._admit() if self._queue else False
        if self._rows:
            self._decoder.step()
            ended = self._retire() or ended
        return ended

    def take(self) -> list[Emission]:
        """Everything that happened since the last take, in order per branch."""
        self._collect(range(len(self._rows)))
        out, self._out = self._out, []
        return out

    def _admit(self) -> bool:
        plans = list(self._startable())
        if not plans:
            return False
        admissions = [a for plan in plans for a in plan.admissions]
        ended = len(admissions) < sum(plan.call.n for plan in plans)
        if admissions:
            self._decoder_admit(plans, admissions)
            ended = self._retire() or ended
        return ended

    def _decoder_admit(self, plans: list[_Plan], admissions: list[Admission]) -> None:
        rows = self._decoder.admit(admissions)
        owners = [
            _Running(plan.call, a.branch, a.start, self.version)
            for plan in plans
            for a in plan.admissions
        ]
        self._rows.extend(owner for _, owner in sorted(zip(rows, owners, strict=True), key=_row))

    def _startable(self) -> Iterator[_Plan]:
        """Calls from the head of the queue, as far as there is room."""
        room = self._slots - len(self._rows)
        while self._queue and self._queue[0].n <= room:
            call = self._queue.popleft()
            room -= call.n
            kept = self._parked.take(call.session, call.prompt)
            self._parked.evict(len(self._parked) - room)
            plan = _Plan(call, kept)
            most = min(call.sampling.max_tokens, self._decoder.model.context - len(call.prompt))
            if most < 1:
                self._out.extend(_no_room(call))
            else:
                pending = call.prompt[len(kept.ids) :] if kept else call.prompt
                state = kept.state if kept else None
                plan.admissions = [
                    Admission(state, pending, call.sampling, branch, most)
                    for branch in range(call.n)
                ]
            yield plan

    def _retire(self) -> bool:
        finished = self._decoder.finished()
        self._collect(finished)
        # From the highest row down, so that removing one does not renumber the next.
        for row in reversed(finished):
            self._finish(row)
        return bool(finished)

    def _finish(self, row: int) -> None:
        running = self._rows[row]
        call = running.call
        output = self._decoder.output(row)
        usage = Usage(len(call.prompt), len(output), running.cached)
        finish = Finish(running.branch, self._reason(row, call, len(output)), usage)
        self._out.append(Emission(call.id, finish))
        if call.session and running.version == self.version:
            # The last sampled token is not in the cache: it is fed with the next turn.
            ids = np.concatenate([call.prompt, output[:-1]])
            self._parked.put(Parked(call.session, ids, self._decoder.store(row)))
        self._drop(row)

    def _reason(self, row: int, call: Call, sampled: int) -> StopReason:
        if self._decoder.ended(row):
            return "stop"
        return "length" if sampled == call.sampling.max_tokens else "context"

    def _drop(self, row: int) -> None:
        last = self._decoder.remove(row)
        self._rows[row] = self._rows[last]
        self._rows.pop()

    def _collect(self, rows: Iterable[int]) -> None:
        for row in rows:
            taken = self._decoder.take(row)
            if len(taken.ids):
                running = self._rows[row]
                span = Span(running.branch, taken.ids, taken.logprobs, self.version)
                self._out.append(Emission(running.call.id, span))


def _row(pair: tuple[int, _Running]) -> int:
    return pair[0]


def _no_room(call: Call) -> Iterator[Emission]:
    for branch in range(call.n):
        usage = Usage(len(call.prompt), 0)
        yield Emission(call.id, Finish(branch, "context", usage))
