"""Tokens per second of the local engine against `transformers.generate`, same model, same work.

Both sample every token at temperature 1 from an untrained model and never stop early. Single-turn:
a batch of equal prompts lengths, 64 new tokens. Multi-turn: four turns of 16 sampled tokens, each
followed by a ragged tool answer; `generate` is used as its users use it, with the growing prompts
padded on the left and prefilled again. Repeats are interleaved, results are medians.

    python bench/engine.py --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from armillary.engine.local.decoder import Decoder
from armillary.engine.local.model import LocalModel, load_model
from armillary.engine.local.scheduler import Call, Scheduler
from armillary.engine.protocol import Span
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids
from armillary.train.local.tiny import make_tiny_model

VOCABULARY = 512
PROMPT = 40
NEW_TOKENS = 64
TURNS = 4
TURN_TOKENS = 16
Conversations = list[Ids]


def prompts(count: int, length: int, rng: np.random.Generator) -> Conversations:
    return [rng.integers(0, VOCABULARY, length).astype(np.int32) for _ in range(count)]


def ragged(count: int, rng: np.random.Generator) -> Conversations:
    """Tool answers of 15 to 25 tokens."""
    return [prompts(1, int(rng.integers(15, 26)), rng)[0] for _ in range(count)]


def ours(scheduler: Scheduler, batch: Conversations, tokens: int, keep: bool) -> Conversations:
    """Continue every conversation by `tokens` sampled tokens."""
    sampling = Sampling(max_tokens=tokens)
    for i, prompt in enumerate(batch):
        scheduler.submit(Call(i, prompt, sampling, session=f"s{i}" if keep else ""))
    while scheduler.busy:
        scheduler.work()
    new: list[list[Ids]] = [[] for _ in batch]
    for call, event in scheduler.take():
        if isinstance(event, Span):
            new[call].append(event.ids)
    return [np.concatenate([p, *parts]) for p, parts in zip(batch, new, strict=True)]


@torch.inference_mode()
def generate(model: LocalModel, batch: Conversations, tokens: int) -> Conversations:
    """The same by `transformers.generate`, prompts padded on the left."""
    width = max(map(len, batch))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(batch):
        ids[i, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[i, width - len(prompt) :] = 1
    out = model.network.generate(  # pyright: ignore[reportCallIssue]
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
    )
    new = out[:, width:].numpy().astype(np.int32)
    return [np.concatenate([p, n]) for p, n in zip(batch, new, strict=True)]


def rollouts(extend: Callable[[Conversations, int], Conversations], batch: Conversations) -> None:
    rng = np.random.default_rng(7)
    for turn in range(TURNS):
        if turn:
            tools = ragged(len(batch), rng)
            batch = [np.concatenate(pair) for pair in zip(batch, tools, strict=True)]
        batch = extend(batch, TURN_TOKENS)


def compare(
    contestants: Sequence[Callable[[], object]], tokens: int, repeats: int
) -> dict[str, float]:
    """Median tokens/s of each contestant, runs interleaved; the first call of each is not timed."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for repeat in range(repeats + 1):
        for run, times in zip(contestants, seconds, strict=True):
            started = time.perf_counter()
            run()
            if repeat:
                times.append(time.perf_counter() - started)
    mine, theirs = (tokens / statistics.median(times) for times in seconds)
    return {"ours": round(mine, 1), "generate": round(theirs, 1), "ratio": round(mine / theirs, 3)}


def measure(model: LocalModel, repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    scheduler = Scheduler(Decoder(model), slots=256)
    single: dict[str, dict[str, float]] = {}
    multi: dict[str, dict[str, float]] = {}
    rng = np.random.default_rng(0)

    def multi_turn(batch: Conversations) -> None:
        rollouts(lambda b, n: ours(scheduler, b, n, keep=True), batch)
        for i in range(len(batch)):
            scheduler.end_session(f"s{i}")

    for size in (1, 16, 64):
        batch = prompts(size, PROMPT, rng)
        single[str(size)] = compare(
            [
                lambda b=batch: ours(scheduler, b, NEW_TOKENS, keep=False),
                lambda b=batch: generate(model, b, NEW_TOKENS),
            ],
            size * NEW_TOKENS,
            repeats,
        )
        multi[str(size)] = compare(
            [
                lambda b=batch: multi_turn(b),
                lambda b=batch: rollouts(lambda c, n: generate(model, c, n), b),
            ],
            size * TURNS * TURN_TOKENS,
            repeats,
        )
    return {"single": single, "multi_turn": multi}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(Path(folder), vocab_size=VOCABULARY, seed=0)
        model = load_model(Path(folder), end_ids=())
    result = measure(model, options.repeats)
    if not options.json:
        print(f"{'tokens/s':<22}{'ours':>10}{'generate':>10}{'ratio':>8}")
        for kind, rows in result.items():
            for size, row in rows.items():
                name = f"{kind}, batch {size}"
                print(f"{name:<22}{row['ours']:>10.0f}{row['generate']:>10.0f}{row['ratio']:>8.2f}")
    parameters = sum(p.numel() for p in model.network.parameters())
    described = {
        "type": model.config.model_type,
        "parameters": parameters,
        "prompt": PROMPT,
        "new_tokens": NEW_TOKENS,
        "turns": TURNS,
        "turn_tokens": TURN_TOKENS,
    }
    print(json.dumps({**result, "model": described, "threads": options.threads}))


if __name__ == "__main__":
    main()
