"""Reference log-probabilities, ours and TRL's precompute on the same judgments: `python -m bench.reference`.

The first time is timed; a second arm, another seed, an added column and a resumed run are counted: how many
responses did they have to run a model for?
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import timing
from bench.training import MOVED
from bench.workloads import CASES, SIZES, Workload, build_model, cases_to_run, tokenizer_of

SIZE = SIZES["0.5B-like"]
N_COMPARISONS = {"signed": 48, "multipref": 48, "mtbench": 32}
BATCH_SIZE = 8

NOTES = (
    "First time: TRL's `_precompute_ref_logps` over the judgments in the corpus's order, in batches of 8, against ours "
    "with the writing of the cache; CPU time, medians of 5. Both score the whole of every response. "
    "`forwards`: responses that a model was run for, counted by the cache.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], list(CASES)).parse_args()
    timing.quiet()
    timing.pin_threads()
    rows = [first_time(case) for case in cases_to_run(options.case)]
    timing.report("Reference log-probabilities", rows + later_runs(), options, NOTES)


def some_comparisons(case: str) -> tuple[Workload, Any]:
    """The first comparisons of a case with all of their votes, and the case's tokenizer."""
    workload = CASES[case](SIZE.vocabulary)
    part = workload.take(np.flatnonzero(workload.comparison < N_COMPARISONS[case]))
    return part, tokenizer_of(workload, SIZE.vocabulary)


def first_time(case: str) -> dict[str, Any]:
    """CPU time of the first computation, and how far the two sides are apart."""
    from badpo.training.reference import ReferenceCache
    from bench.peers import TRL, Ours, gpu_head

    part, tokenizer = some_comparisons(case)
    models = build_model(SIZE, moved=MOVED), build_model(SIZE)
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = Ours(part, tokenizer, models, "grouped", BATCH_SIZE, 1, folder)
        peer = TRL(ours, models, folder, precompute_ref_log_probs=False)

        def our_reference():
            ours.trainer.reference_cache = ReferenceCache(folder / f"cache-{next(numbers)}", "key")
            return ours.trainer.reference_logps(ours.trainer.train_dataset)

        def trl_reference():
            # a hash that was not there before, so that its cache does not answer
            peer.trainer._precompute_model_hash = str(next(numbers))
            return peer.trainer._precompute_ref_logps(peer.trainer.train_dataset, "train", BATCH_SIZE)

        def trl_compact():
            with gpu_head():
                return trl_reference()

        difference = largest_difference(ours, our_reference(), trl_reference())
        seconds = timing.median_seconds({"ours": our_reference, "trl": trl_reference, "compact": trl_compact})
        n_responses = ours.trainer.reference_cache.n_computed
    return {
        "case": case,
        "what": "first time",
        "batching": None,
        "micro_batch": BATCH_SIZE,
        "ratio_vs_trl_compact": seconds["compact"] / seconds["ours"],
        "ratio_vs_trl": seconds["trl"] / seconds["ours"],
        "rel_grad_diff": None,
        "peak_memory_ratio": None,
        "rel_logp_diff": difference,
        "forwards": n_responses,
    }


def largest_difference(ours, values, rows) -> float:
    """Largest difference between the sums of a response's log-probabilities, relative to the sum."""
    votes = ours.trainer.judgments.votes.iloc[np.concatenate(ours.steps)]
    found = np.array(
        [
            [float(side.sum(dtype=np.float64)) for side in values[c][:: int(sign)]]
            for c, sign in zip(votes["comparison"], votes["sign"], strict=True)
        ]
    )
    expected = np.column_stack([rows["ref_chosen_logps"], rows["ref_rejected_logps"]])
    return float((np.abs(found - expected) / np.abs(expected)).max())


def later_runs() -> list[dict[str, Any]]:
    """Responses that runs after the first have to compute."""
    part, tokenizer = some_comparisons("signed")
    part = part.take(np.flatnonzero(part.comparison < 8))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def forwards(run: str, workload: Workload = part, resume: bool = False, **settings: Any) -> int:
            trainer = short_run(workload, tokenizer, folder, run, settings)
            trainer.train(resume_from_checkpoint=resume or None)
            return trainer.reference_cache.n_computed

        with_column = Workload(part.votes.assign(weight=1.0), part.comparison)
        counts = {
            "first run": forwards("first", max_steps=2),
            "second arm": forwards("arm", max_steps=1, bias="pooled"),
            "second seed": forwards("seed", max_steps=1, seed=1),
            "added column": forwards("column", with_column, max_steps=1),
            "resumed run": forwards("first", resume=True, max_steps=2),
        }
    return [{"case": "signed", "what": what, "forwards": n} for what, n in counts.items()]


def short_run(workload: Workload, tokenizer, folder: Path, run: str, settings: dict[str, Any]):
    """A trainer of a few steps that shares the cache with the others and saves after its first step."""
    from badpo.attributes import Length
    from badpo.data.judgments import Judgments
    from badpo.training.config import BADPOConfig
    from badpo.training.trainer import BADPOTrainer
    from bench.peers import ON_PROCESSOR, SETTINGS

    saving = dict(save_strategy="steps", save_steps=1, per_device_train_batch_size=8)
    args = BADPOConfig(
        str(folder / run),
        **(SETTINGS | ON_PROCESSOR | saving | settings),
        reference_cache=str(folder / "cache"),
    )
    return BADPOTrainer(
        build_model(SIZE),
        args=args,
        train_dataset=Judgments.read(workload.votes, attributes=[Length(ratio=1.5)]),
        processing_class=tokenizer,
    )


if __name__ == "__main__":
    main()
