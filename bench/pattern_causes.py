"""Why patterns of the style suites are not there with a small model: figures for the page of `bench.results_tiny`.

Reads the policies of finished runs and trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.data.judgments import Judgments
from badpo.experiments.suite_parts import Corpus
from badpo.experiments.suite_readouts import kept_readouts, load_trained
from badpo.experiments.suite_scales import SCALES
from badpo.experiments.suite_stages import sound_material
from badpo.readouts.heldout import heldout_accuracy
from badpo.results.labels import signed
from badpo.theory.summaries import t_interval
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from bench.markdown_table import markdown_table

TINY = SCALES["tiny"]
STYLE = Corpus("style")
LABELS = {
    "dpo": "DPO",
    "pooled-length": "BA-DPO (pooled)",
    "rdpo": "R-DPO (0.005)",
    "sampo": "SamPO",
}


def equal_token_margins(
    ratios_a: Sequence[ArrayLike], ratios_b: Sequence[ArrayLike], beta: float
) -> NDArray[np.float64]:
    """The margin that SamPO trains, averaged over its draws: as many tokens of both responses as the shorter one has.

    Parameters
    ----------
    ratios_a, ratios_b : sequences of arrays
        log pi - log pi_ref of every token of the two responses of each comparison.
    beta : float

    Examples
    --------
    >>> equal_token_margins([[0.2, 0.4]], [[0.1] * 6], beta=1.0).round(2)
    array([0.4])
    """
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(ratios_a, ratios_b, strict=True)]
    return beta * np.array([min(len(a), len(b)) * (a.mean() - b.mean()) for a, b in pairs])


def differences(judgments: Judgments) -> NDArray[np.float64]:
    """The attribute differences of every comparison, shape (n_comparisons, n_attributes)."""
    values = np.zeros((judgments.n_comparisons, judgments.n_attributes))
    values[judgments.votes["comparison"].to_numpy()] = judgments.delta
    return values


class HeldOut:
    """The held-out comparisons as policies read them, and the reference's log-probabilities of their tokens."""

    def __init__(self, folder: Path, votes: Path | None):
        material = sound_material(STYLE, TINY, votes)
        settings = TINY.settings(STYLE, material)
        _, self.judgments = material.split()
        self.reference = folder / "reference"
        tokenizer = AutoTokenizer.from_pretrained(self.reference / "model")
        encoded = encode_comparisons(
            self.judgments, tokenizer, "paper", settings.max_length, settings.max_prompt_length
        )
        sides = zip(encoded.prompt_ids, encoded.a_ids, encoded.b_ids, strict=True)
        self.pairs = [(prompt, response) for prompt, a, b in sides for response in (a, b)]
        lengths = np.array([len(response) for _, response in self.pairs])
        self.longer = np.sign(lengths[0::2] - lengths[1::2])
        self.beta = settings.beta
        self.theirs = response_logps(
            AutoModelForCausalLM.from_pretrained(self.reference / "model"), self.pairs
        )

    def readings(self, run: Path) -> dict[str, float]:
        """The columns of the table: gaps on what held-out responses differ in, preference for the longer one, drift."""
        ours = response_logps(load_trained(run, self.reference), self.pairs)
        ratios = [
            np.asarray(own, dtype=np.float64) - base for own, base in zip(ours, self.theirs, strict=True)
        ]
        sums = np.array([ratio.sum() for ratio in ratios])
        sides = {
            "": self.beta * (sums[0::2] - sums[1::2]),
            ", at equal tokens": equal_token_margins(ratios[0::2], ratios[1::2], self.beta),
        }
        differ = differences(self.judgments) != 0
        gaps = {how: heldout_accuracy(margins, self.judgments).attributes for how, margins in sides.items()}
        shown = [
            n for n, varies in zip(self.judgments.attribute_names, differ.any(axis=0), strict=True) if varies
        ]
        found = {f"gap on {name}{how}": gaps[how][name].gap.estimate for name in shown for how in sides}
        # two responses that are cut to the same number of tokens have no longer one
        longer = differ[:, self.judgments.attribute_names.index("length")] & (self.longer != 0)
        for how, margins in sides.items():
            found[f"longer preferred{how}"] = float(np.mean((np.sign(margins) == self.longer)[longer]))
        return found | {"log-ratio per token": float(np.concatenate(ratios).mean())}


# By the beginning of a pattern's sentence.
BUNDLED = {
    "SamPO does not close the gap": "The gap is read with sums over whole answers, as the paper reads it. SamPO trains "
    "the margin at equal numbers of tokens, and there its gap stays open, like that of BA-DPO and of R-DPO (table "
    "below). Nothing in it keeps up the sum of a longer answer, and on average a token loses probability against the "
    "reference here (last column), so that a longer answer loses more in the sum.",
    "Group-DRO removes less": "The three seeds do not say how much it removes: the interval holds both nothing and "
    "more than half.",
    "Under Markdown R-DPO's gap": "A penalty on length can turn the lean toward Markdown only as far as longer answers "
    "have more Markdown, and on these votes the two differences hardly go together (correlation below).",
    "Shared mean predicts votes": "Two classes lie at the ceiling with their whole interval. In class C the three "
    "seeds scatter by more than the bound allows; their mean lies within it.",
    "A larger LoRA rate": "Forty times the rate of full fine-tuning, the paper's ratio, is too much for this model: "
    "DPO itself moves p(woman) down, so that there is no shift of which a share could be removed.",
}
UKP = {
    "Pooled and shared mean take a part": "Pooled does. Shared mean takes as much in the mean, but its three seeds "
    "scatter and the interval reaches to nothing.",
    "DPO opens a held-out gap": "In sums over whole answers, as the paper reads the gap, it does not open: on average "
    "a token loses probability against the reference (table below, last column), so that a longer answer loses more in "
    "the sum. At equal numbers of tokens DPO's gap is open with its whole interval.",
    "R-DPO turns the gap negative": "In the sums DPO leaves no gap that a penalty could turn; at equal numbers of "
    "tokens R-DPO leaves most of it open.",
    "SamPO does not close the gap": "For the reason of the bundled votes: at equal numbers of tokens its gap is open.",
}
MTBENCH = {
    "Pooled and shared mean take a part": "Tokens can hardly show it: answers are cut at 128 tokens, which those of "
    "DPO nearly fill.",
    "DPO opens a held-out gap": "Over seeds it does; over the held-out prompts the interval holds zero at every seed "
    "(line below). What pooled and shared mean leave of it is not decided: their gaps scatter over seeds by more than "
    "DPO's is wide, and most votes that differ in length are on two responses that are both cut (lines under the "
    "table).",
    "R-DPO turns the gap negative": "Not decided, for the same reason: the interval reaches to both sides of zero.",
    "SamPO does not close the gap": "Not decided, for the same reason: the interval reaches to both sides of zero.",
}
# by the name of the table of real votes
EXPLANATIONS = {"": BUNDLED, "ukpconvarg1_human": UKP, "mtbench_human_gpt4": MTBENCH}


def explanation(sentence: str, votes: str = "") -> str:
    """What explains that a pattern is not there; says so where nothing was found out.

    Parameters
    ----------
    sentence : str
        The pattern's.
    votes : str
        Name of the table of real votes; empty for the bundled corpus.

    Examples
    --------
    >>> explanation("A new pattern")
    'Not explained.'
    """
    known = EXPLANATIONS.get(votes, {})
    found = [text for beginning, text in known.items() if sentence.startswith(beginning)]
    return found[0] if found else "Not explained."


def together(judgments: Judgments) -> str:
    """How length and Markdown go together over comparisons, in a sentence; empty where one of them is in none."""
    values = differences(judgments)
    if not values.any(axis=0).all():
        return ""
    correlation = np.corrcoef(values.T)[0, 1]
    return f"\nCorrelation of the length and the Markdown difference of a comparison: {correlation:.2f}.\n"


def gap_by_prompt(folder: Path, seeds: Sequence[int]) -> str:
    """How sure the held-out gap of DPO is over prompts, which an interval over seeds does not know, in a sentence."""
    found = [kept_readouts(folder / f"dpo-s{seed}").get("heldout", {}).get("length", {}) for seed in seeds]
    ends = [(one["gap_low"], one["gap_high"]) for one in found if one.get("gap_low") is not None]
    if not ends:
        return ""
    told = "; ".join(f"{signed(low, 3)} to {signed(high, 3)}" for low, high in ends)
    return f"DPO's gap on length at each seed, with its 95 % interval over held-out prompts: {told}.\n"


def style_causes(folder: Path, seeds: Sequence[int], votes: Path | None = None) -> str:
    """Table of what policies hold of length and Markdown, over whole answers and over equal numbers of tokens.

    Parameters
    ----------
    folder : Path
        The runs of the style corpus; empty where one of the policies is not there.
    seeds : sequence of int
    votes : Path or None
        The table of real votes that they are of; None for the bundled corpus.
    """
    runs = {arm: [folder / f"{arm}-s{seed}" for seed in seeds] for arm in LABELS}
    if not all((run / "readouts.json").exists() for places in runs.values() for run in places):
        return ""
    held_out = HeldOut(folder, votes)
    rows, columns = [], []
    for arm, places in runs.items():
        readings = [held_out.readings(run) for run in places]
        columns = list(readings[0])
        found = [t_interval([reading[column] for reading in readings]) for column in columns]
        texts = [
            f"{one.estimate:.3f}" if "preferred" in column else signed(one.estimate, 3)
            for column, one in zip(columns, found, strict=True)
        ]
        rows.append(
            [LABELS[arm], *(f"{text} ± {one.half_width:.3f}" for text, one in zip(texts, found, strict=True))]
        )
    table = markdown_table(["", *columns], rows)
    return f"{table}\n\n*± is half of the 95 % interval over seeds (Student's t)*\n{together(held_out.judgments)}"
