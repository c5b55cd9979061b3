"""The scripted engine keeps the engine's contract."""

from __future__ import annotations

from wire import END, Wire

from armillary.engine.protocol import EngineEvent, Finish, Span
from armillary.engine.scripted import ScriptedEngine
from armillary.record.calls import Sampling
from armillary.record.tokens import TokenSequence

PROMPT = TokenSequence((5, 6, 7))


async def played(engine: ScriptedEngine, *, limit: int = 100, n: int = 1) -> list[EngineEvent]:
    stream = engine.generate(PROMPT, Sampling(max_tokens=limit), n=n, session="a")
    return [event async for event in stream]


def sampled(events: list[EngineEvent], branch: int = 0) -> list[int]:
    spans = [e for e in events if isinstance(e, Span) and e.branch == branch]
    assert all(len(e.ids) == len(e.logprobs) and not e.logprobs.any() for e in spans)
    return [token for span in spans for token in span.ids.tolist()]


async def test_it_plays_the_replies_of_each_session_in_order(wire: Wire) -> None:
    engine = wire.engine(["one" + END, "two" + END])
    assert sampled(await played(engine)) == wire.ids("one" + END).tolist()
    assert sampled(await played(engine)) == wire.ids("two" + END).tolist()
    await engine.end_session("a")
    assert sampled(await played(engine)) == wire.ids("one" + END).tolist()


async def test_it_is_cut_at_the_limit_and_says_so(wire: Wire) -> None:
    ids = wire.ids("one" + END).tolist()
    for limit, reason in ((len(ids) - 1, "length"), (len(ids), "stop")):
        events = await played(wire.engine(["one" + END]), limit=limit)
        assert sampled(events) == ids[:limit]
        finish = events[-1]
        assert isinstance(finish, Finish)
        assert finish.reason == reason
        assert (finish.usage.prompt_tokens, finish.usage.output_tokens) == (3, limit)


async def test_every_branch_ends_once(wire: Wire) -> None:
    events = await played(wire.engine(["one" + END]), n=3)
    assert [e.branch for e in events if isinstance(e, Finish)] == [0, 1, 2]
    assert {tuple(sampled(events, branch)) for branch in range(3)} == {tuple(wire.ids("one" + END))}


async def test_a_policy_sees_session_number_and_prompt(wire: Wire) -> None:
    seen: list[tuple[str, int, TokenSequence]] = []

    def policy(session: str, number: int, prompt: TokenSequence):
        seen.append((session, number, prompt))
        return wire.ids("x" + END)

    engine = ScriptedEngine(policy)
    await played(engine)
    await played(engine)
    assert seen == [("a", 0, PROMPT), ("a", 1, PROMPT)]
    assert engine.capabilities.level == "tokens"
