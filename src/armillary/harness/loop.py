"""Our own tool loop: the white-box harness.

Two tools, `bash` and `submit`. The loop calls the session in process, so there is no wire between
it and the record; commands are real processes in the sandbox. `LoopFlow` holds every decision of
the loop; the same code runs an attempt and writes demonstrations.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import aclosing

import msgspec

from armillary.capture.dialects.chat_completions import tool_schema
from armillary.capture.session import ChatRequest, Session, TurnFinished
from armillary.chat.messages import AssistantTurn, Message, Tool, ToolCall, text_of
from armillary.chat.template import call_opening
from armillary.errors import SandboxError
from armillary.harness.protocol import Budget, Flow, Step
from armillary.record.outcomes import Ending
from armillary.sandbox.protocol import WORKDIR, File, Sandbox, SandboxProvider
from armillary.sandbox.registry import sandbox_provider
from armillary.tasks.protocol import CommandResult, RunCommand

SYSTEM = (
    "You are a data agent. Look at the files with the bash tool, then hand in the answer with "
    "the submit tool."
)
NO_CALL = "error: no tool call"
BAD_ARGUMENTS = "error: bad arguments"
MAX_IDLE_TURNS = 3
"""So many turns without a tool call in a row mean that the policy gave up."""
MAX_OUTPUT = 10_000
"""Characters of a command's output that the model sees."""


def _tool(name: str, description: str, argument: str) -> Tool:
    function = {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        },
    }
    return Tool(name, tool_schema({"type": "function", "function": function}))


TOOLS = (
    _tool("bash", "Run a shell command.", "command"),
    _tool("submit", "Submit the final answer.", "answer"),
)


class LoopFlow:
    """The loop's messages and decisions."""

    tools: tuple[Tool, ...] = TOOLS

    def __init__(self, run_command: RunCommand | None = None) -> None:
        self._run_command = run_command
        self.answer: str | None = None
        """What was submitted."""
        self.gave_up = False
        self._idle = 0

    def start(self, instruction: str) -> tuple[Message, ...]:
        return Message("system", SYSTEM), Message("user", instruction)

    def step(self, turn: AssistantTurn) -> Step:
        if self._run_command is None:
            raise ValueError("this flow has no shell; drive `steps` yourself")
        steps = self.steps(turn)
        try:
            command = next(steps)
            while True:
                command = steps.send(self._run_command(command))
        except StopIteration as stop:
            return stop.value

    def steps(self, turn: AssistantTurn) -> Generator[str, CommandResult, Step]:
        """Yields the commands to run, is sent their results, returns the step."""
        if not turn.tool_calls:
            self._idle += 1
            self.gave_up = self._idle >= MAX_IDLE_TURNS
            return Step(True, (Message("user", NO_CALL),), self.gave_up)
        self._idle = 0
        replies: list[Message] = []
        for call in turn.tool_calls:
            text = yield from self._answer(call)
            if self.answer is not None:
                return Step(True, (), done=True)
            replies.append(Message("tool", text, tool_call_id=call.id))
        return Step(True, tuple(replies), done=False)

    def _answer(self, call: ToolCall) -> Generator[str, CommandResult, str]:
        wanted = {"bash": "command", "submit": "answer"}.get(call.name)
        if wanted is None:
            return f"error: unknown tool {call.name}"
        argument = _string_argument(call.arguments, wanted)
        if argument is None:
            return BAD_ARGUMENTS
        if call.name == "submit":
            self.answer = argument
            return ""
        result = yield argument
        return shown(result)


def shown(result: CommandResult) -> str:
    """A command's result as the model sees it."""
    text = result.output.rstrip("\n")
    if len(text) > MAX_OUTPUT:
        text = text[:MAX_OUTPUT] + f"\n[{len(text) - MAX_OUTPUT} more characters]"
    return text if result.code == 0 else f"{text}\n[exit status {result.code}]"


class LoopActions:
    """How a scripted policy acts in the loop."""

    def run(self, command: str) -> AssistantTurn:
        return _call("bash", command=command)

    def finish(self, answer: str) -> Sequence[AssistantTurn]:
        return (_call("submit", answer=answer),)

    def output(self, message: Message) -> str:
        return text_of(message.content)


def _call(name: str, **arguments: str) -> AssistantTurn:
    import json

    return AssistantTurn(tool_calls=(ToolCall(f"call_{name}", name, json.dumps(arguments)),))


class LoopHarness:
    """The white-box harness."""

    name: str = "loop"
    version: str = "1"
    actions = LoopActions()
    closing = AssistantTurn(content="The budget is spent.")

    def __init__(self, sandbox: str) -> None:
        """`sandbox` names a provider of `sandbox.registry`."""
        self._sandbox = sandbox

    def flow(self, run_command: RunCommand) -> Flow:
        return LoopFlow(run_command)

    def phrases(self) -> tuple[str, ...]:
        calls = (call_opening("bash", "command"), call_opening("submit", "answer"))
        schemas = (tool.schema for tool in TOOLS)
        return (SYSTEM, NO_CALL, BAD_ARGUMENTS, "\n[exit status ", *calls, *schemas)

    def provider(self) -> SandboxProvider:
        return sandbox_provider(self._sandbox)

    async def prepare(self, provider: SandboxProvider) -> None:
        """Nothing to learn."""

    async def run(
        self, instruction: str, session: Session, sandbox: Sandbox, budget: Budget
    ) -> Ending:
        flow = LoopFlow()
        messages = list(flow.start(instruction))
        while True:
            finished = await _ask(session, messages)
            if finished.call is None:
                return Ending(session.spent or "call_budget")
            step = await self._step(flow, finished.turn, sandbox, budget)
            if flow.answer is not None:
                return await _hand_in(sandbox, flow.answer)
            if step.done:
                return Ending("gave_up", f"{MAX_IDLE_TURNS} turns without a tool call")
            messages += [finished.turn.message(), *step.messages]

    async def _step(
        self, flow: LoopFlow, turn: AssistantTurn, sandbox: Sandbox, budget: Budget
    ) -> Step:
        steps = flow.steps(turn)
        try:
            command = next(steps)
            while True:
                result = await _shell(sandbox, command, budget.command_seconds)
                command = steps.send(result)
        except StopIteration as stop:
            return stop.value


async def _ask(session: Session, messages: Sequence[Message]) -> TurnFinished:
    request = ChatRequest(tuple(messages), TOOLS)
    async with aclosing(session.call(request)) as events:
        async for event in events:
            if isinstance(event, TurnFinished):
                return event
    raise AssertionError("a session call ends with TurnFinished")


async def _hand_in(sandbox: Sandbox, answer: str) -> Ending:
    """Write the answer file, where the policy has left a place for it.

    A policy can fill its disk or shut its work folder. Ending its processes gives back the disk
    kept in reserve; what still cannot be written then is no fault of ours, or it would be a way
    out of a wrong answer.
    """
    await sandbox.end_processes()
    try:
        await sandbox.write({f"{WORKDIR}/answer.txt": File(f"{answer}\n".encode())})
    except SandboxError as fault:
        if fault.kind != "io":
            raise
        return Ending("submitted", f"the answer could not be written: {fault}")
    return Ending("submitted")


async def _shell(sandbox: Sandbox, command: str, seconds: float) -> CommandResult:
    done = await sandbox.exec(["/bin/sh", "-c", command], seconds, merge_output=True)
    return CommandResult(done.out.decode(errors="replace"), done.code)


def _string_argument(arguments: str, name: str) -> str | None:
    try:
        value = msgspec.json.decode(arguments, type=dict[str, object]).get(name)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, str) else None
