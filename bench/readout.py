"""Probabilities of 89 names behind a context, in one pass and by a forward per name: `python -m bench.readout`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import timing
from bench.workloads import SIZES, build_model, word_tokenizer

SIZE = SIZES["0.5B-like"]
N_CONTEXTS = 300
# How many names have how many tokens, as Qwen2.5's tokenizer splits the pool.
NAMES_WITH_TOKENS = {1: 34, 2: 42, 3: 13}
N_BEGINNINGS = 30
LEAD = "w0 w1 "
CONTEXT_TOKENS = (170, 231)
NAIVE_CONTEXTS = 1
LARGEST_DIFFERENCE = 1e-5

NOTES = (
    "CPU time per context, medians of 5; ours over 300 contexts, as many as the paper reads, with its own start-up "
    "test. `ratio_vs_full_forwards`: one forward with all logits per name; `ratio_vs_name_positions`: the same with "
    "the head at the name's positions only.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], ["names"]).parse_args()
    timing.quiet()
    timing.pin_threads()
    row = measured()
    timing.report("89 names behind a context", [row], options, NOTES)
    if row["max_logp_diff"] > LARGEST_DIFFERENCE:
        raise SystemExit(f"a log-probability differs by more than {LARGEST_DIFFERENCE:.0e}")


def name_pool(rng) -> list[str]:
    """Names as one to three tokens; the longer ones begin with one of a few beginnings."""
    pieces = rng.permutation(np.arange(100, 1000))
    single, beginnings, ends = np.split(pieces, [NAMES_WITH_TOKENS[1], NAMES_WITH_TOKENS[1] + N_BEGINNINGS])
    names = [f"w{i}" for i in single]
    position = 0
    for n_tokens in (2, 3):
        for _ in range(NAMES_WITH_TOKENS[n_tokens]):
            own = ends[position : position + n_tokens - 1]
            position += n_tokens - 1
            names.append(" ".join(f"w{i}" for i in (rng.choice(beginnings), *own)))
    return names


def contexts_of(tokenizer, rng) -> list[list[int]]:
    """Contexts of random tokens that end with the lead."""
    lead = tokenizer(LEAD, add_special_tokens=False)["input_ids"]
    lengths = rng.integers(*CONTEXT_TOKENS, N_CONTEXTS)
    return [[*rng.integers(5, SIZE.vocabulary, n - len(lead)).tolist(), *lead] for n in lengths]


def measured() -> dict[str, Any]:
    from badpo.readouts.rates import name_logps

    rng = np.random.default_rng(0)
    tokenizer, model = word_tokenizer(SIZE.vocabulary), build_model(SIZE).eval()
    names, contexts = name_pool(rng), contexts_of(tokenizer, rng)
    token_ids = [tokenizer(name, add_special_tokens=False)["input_ids"] for name in names]
    few = contexts[:NAIVE_CONTEXTS]
    found = name_logps(model, tokenizer, contexts, names, lead=LEAD)
    expected = one_forward_per_name(model, few, token_ids, all_logits=True)
    seconds = timing.median_seconds(
        {
            "ours": lambda: name_logps(model, tokenizer, contexts, names, lead=LEAD),
            "full": lambda: one_forward_per_name(model, few, token_ids, all_logits=True),
            "positions": lambda: one_forward_per_name(model, few, token_ids, all_logits=False),
        }
    )
    ours = seconds["ours"] / N_CONTEXTS
    return {
        "case": "names",
        "names": len(names),
        "contexts": N_CONTEXTS,
        "ratio_vs_full_forwards": seconds["full"] / NAIVE_CONTEXTS / ours,
        "ratio_vs_name_positions": seconds["positions"] / NAIVE_CONTEXTS / ours,
        "max_logp_diff": float(np.abs(found[: len(few)] - expected).max()),
        "seconds_per_context": ours,
    }


def one_forward_per_name(model, contexts, token_ids, all_logits: bool) -> np.ndarray:
    """Log-probability of every name after every context, shape (n_contexts, n_names), each by a forward of its own."""
    import torch

    result = np.empty((len(contexts), len(token_ids)))
    with torch.no_grad():
        for i, context in enumerate(contexts):
            for j, ids in enumerate(token_ids):
                row = torch.tensor([*context, *ids])[None]
                keep = 0 if all_logits else len(ids) + 1
                logits = model(input_ids=row, use_cache=False, logits_to_keep=keep).logits[0]
                logps = logits[-len(ids) - 1 : -1].log_softmax(-1)
                result[i, j] = logps.gather(1, row[0, -len(ids) :, None]).double().sum()
    return result


if __name__ == "__main__":
    main()
