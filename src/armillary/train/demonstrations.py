"""Demonstrations as training rows: what a scripted policy would have done in a harness.

A row is built from the harness's own message flow and the model's own template, so its ids are
those a recorded attempt of the same messages would have; the mask covers the assistant turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from armillary.chat.messages import AssistantTurn, Message
from armillary.chat.template import Template
from armillary.harness.protocol import Flow, Harness
from armillary.record.rows import TrainingRow
from armillary.tasks.folder import Task
from armillary.tasks.protocol import DemonstrationStyle, TaskFamily


def demonstrate(
    task: Task, family: TaskFamily, harness: Harness, style: DemonstrationStyle, seed: int
) -> tuple[list[Message], Flow]:
    """Play one demonstration; its messages and the flow it was played in."""
    flow = harness.flow(family.emulate(task))
    messages = list(flow.start(task.instruction))

    def act(turn: AssistantTurn) -> Sequence[Message]:
        step = flow.step(turn)
        messages.append(turn.message())
        messages.extend(step.messages)
        return step.messages

    policy = family.demonstrate(task, style, seed)
    try:
        command = next(policy)
        while True:
            replies = act(harness.actions.run(command))
            command = policy.send(harness.actions.output(replies[-1]))
    except StopIteration as stop:
        for turn in harness.actions.finish(stop.value):
            act(turn)
    return messages, flow


def demonstration_row(
    messages: Sequence[Message], flow: Flow, template: Template, *, name: str, harness: str
) -> TrainingRow:
    """The row of a played demonstration; every assistant turn is trained."""
    rendered = template.render(messages, flow.tools, reply=False)
    mask = np.zeros(len(rendered.tokens), dtype=np.bool_)
    for start, stop in rendered.assistant:
        mask[start:stop] = True
    # Nothing follows the last turn's end token in an attempt either.
    end = rendered.assistant[-1][1]
    return TrainingRow(
        rendered.tokens.slice(0, end), mask[:end], np.zeros(end, np.float32), attempt=name,
        harness=harness,
    )  # fmt: skip
