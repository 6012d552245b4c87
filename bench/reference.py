"""Reference log-probabilities, ours and TRL's precompute on the same judgments: `python -m bench.reference`."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import timing
from bench.training import MOVED
from bench.workloads import CASES, SIZES, build_model, cases_to_run, tokenizer_of

SIZE = SIZES["0.5B-like"]
N_COMPARISONS = {"signed": 48, "multipref": 48, "mtbench": 32}
BATCH_SIZE = 8
NOTES = (
    "TRL's `_precompute_ref_logps` over the judgments in the corpus's order, in batches of 8, against ours with the "
    "writing of the cache; CPU time, medians of 5. Both score the whole of every response.",
)


def main() -> None:
    options = timing.options_parser(__doc__, list(CASES)).parse_args()
    timing.quiet()
    timing.pin_threads()
    rows = [measured(case) for case in cases_to_run(options.case)]
    timing.report("Reference log-probabilities", rows, options, NOTES)


def measured(case: str) -> dict[str, Any]:
    """CPU time of the first computation, and how far the two sides are apart."""
    from badpo.training.batches import EncodedJudgments
    from badpo.training.reference import ReferenceCache
    from bench.peers import TRL, Ours, gpu_head

    workload = CASES[case](SIZE.vocabulary)
    part = workload.take(np.flatnonzero(workload.comparison < N_COMPARISONS[case]))
    models = build_model(SIZE, moved=MOVED), build_model(SIZE)
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = tokenizer_of(workload, SIZE.vocabulary)
        ours = Ours(part, tokenizer, models, "grouped", BATCH_SIZE, 1, folder)
        judgments = EncodedJudgments(ours.trainer.judgments, ours.trainer.encoded)
        peer = TRL(ours, models, folder, precompute_ref_log_probs=False)

        def our_reference():
            ours.trainer.reference_cache = ReferenceCache(folder / f"cache-{next(numbers)}", "key")
            return ours.trainer.reference_logps(judgments)

        def trl_reference():
            # a hash that was not there before, so that its cache does not answer
            peer.trainer._precompute_model_hash = str(next(numbers))
            return peer.trainer._precompute_ref_logps(peer.trainer.train_dataset, "train", BATCH_SIZE)

        def trl_compact():
            with gpu_head():
                return trl_reference()

        difference = largest_difference(ours, our_reference(), trl_reference())
        seconds = timing.median_seconds({"ours": our_reference, "trl": trl_reference, "compact": trl_compact})
    return {
        "case": case,
        "micro_batch": BATCH_SIZE,
        "ratio_vs_trl_compact": seconds["compact"] / seconds["ours"],
        "ratio_vs_trl": seconds["trl"] / seconds["ours"],
        "rel_logp_diff": difference,
        "responses": ours.trainer.reference_cache.n_computed,
    }


def largest_difference(ours, values, rows) -> float:
    """Largest difference between the sums of a response's log-probabilities, relative to the sum."""
    votes = ours.trainer.judgments.votes.iloc[np.concatenate(ours.steps)]
    pairs = zip(votes["comparison"], votes["sign"], strict=True)
    sums = [[float(side.sum(dtype=np.float64)) for side in values[c][:: int(sign)]] for c, sign in pairs]
    expected = np.column_stack([rows["ref_chosen_logps"], rows["ref_rejected_logps"]])
    return float((np.abs(np.array(sums) - expected) / np.abs(expected)).max())


if __name__ == "__main__":
    main()
