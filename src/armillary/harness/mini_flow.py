"""mini-SWE-agent as a state machine, for demonstrations.

A test holds it byte-equal to runs of the real program: the same messages, in the same order, for
good commands, failing ones, malformed calls, cut turns and the end. Attempts that train or are
reported are always the real program; this only writes what a teacher would have done in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
from jinja2.utils import htmlsafe_json_dumps

from armillary.chat.messages import AssistantTurn, Message, Tool, ToolCall, text_of
from armillary.errors import HarnessError
from armillary.harness.mini_protocol import MiniProtocol
from armillary.harness.protocol import Step
from armillary.tasks.protocol import CommandResult, RunCommand

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First output line that ends a run, with exit status 0."""
MAX_FORMAT_ERRORS = 3
"""So many malformed turns in a row end a run."""


OBSERVATION_PHRASES = (
    *(f'{{\n  "returncode": {code},\n  "output": "' for code in (0, 1, 127)),
    '\\n"\n}',
    '"\n}',
)
"""Fixed parts of `observation`."""


class MiniFlow:
    """The message flow of one run."""

    def __init__(self, protocol: MiniProtocol, run_command: RunCommand) -> None:
        self._protocol = protocol
        self._run_command = run_command
        self._errors = 0
        self.tools: tuple[Tool, ...] = protocol.tools

    def start(self, instruction: str) -> tuple[Message, ...]:
        p = self._protocol
        return Message("system", p.system), Message("user", p.before + instruction + p.after)

    def step(self, turn: AssistantTurn, *, cut: bool = False) -> Step:
        """`cut`: the turn ended by the length limit."""
        if not turn.tool_calls:
            reason = (
                "No tool calls found in the response. "
                "Every response MUST include at least one tool call."
            )
            return self._refuse(reason, cut)
        commands: list[str] = []
        for call in turn.tool_calls:
            command, reason = _command(call)
            if reason:
                return self._refuse(reason, cut)
            commands.append(command)
        self._errors = 0
        return self._execute(commands, turn.tool_calls)

    def _execute(self, commands: list[str], calls: Sequence[ToolCall]) -> Step:
        replies: list[Message] = []
        for command, call in zip(commands, calls, strict=True):
            result = self._run_command(command)
            first = result.output.lstrip().split("\n")[0].strip()
            if first == MARKER and result.code == 0:
                return Step(True, (), done=True)
            replies.append(Message("tool", observation(result), tool_call_id=call.id))
        return Step(True, tuple(replies), done=False)

    def _refuse(self, reason: str, cut: bool) -> Step:
        p = self._protocol
        self._errors += 1
        text = p.error_cut if cut else p.error_before + reason.strip() + p.error_after
        return Step(False, (Message("user", text),), done=self._errors >= MAX_FORMAT_ERRORS)


def observation(result: CommandResult) -> str:
    """A command's result as the program shows it."""
    output = str(htmlsafe_json_dumps(result.output))
    return f'{{\n  "returncode": {result.code},\n  "output": {output}\n}}'


def _command(call: ToolCall) -> tuple[str, str]:
    """The command, and why it is refused (empty if it is not)."""
    reason = ""
    arguments: object = {}
    try:
        arguments = json.loads(call.arguments)
    except ValueError as error:
        reason = f"Error parsing tool call arguments: {error}."
    if call.name != "bash":
        reason += f"Unknown tool '{call.name}'."
    if not isinstance(arguments, dict) or "command" not in arguments:
        reason += "Missing 'command' argument in bash tool call."
        return "", reason
    command = arguments["command"]
    if not isinstance(command, str):
        raise HarnessError(f"the flow does not know what the program does with command {command!r}")
    return command, reason


class MiniActions:
    """How a scripted policy acts in mini-SWE-agent."""

    def run(self, command: str) -> AssistantTurn:
        call = ToolCall("call_bash", "bash", json.dumps({"command": command}))
        return AssistantTurn(tool_calls=(call,))

    def finish(self, answer: str) -> Sequence[AssistantTurn]:
        return self.run(f"echo {answer} > answer.txt"), self.run(f"echo {MARKER}")

    def output(self, message: Message) -> str:
        fields = msgspec.json.decode(text_of(message.content), type=dict[str, object])
        return str(fields.get("output", ""))
