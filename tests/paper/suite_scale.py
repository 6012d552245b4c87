"""A scale whose runs take a second: a model with one layer and six training steps."""

from dataclasses import replace
from pathlib import Path

from badpo.readouts.generation import Decoding
from badpo_paper.datasets import Dataset, make_signed_dataset, make_style_dataset
from badpo_paper.schedule import Reproduction
from badpo_paper.settings import Scale
from badpo_paper.suites import Condition, Corpus, Panel, Row, Suite
from tests.paper.conftest import SMALL_KEYS, SMALL_START

REFERENCE = {**SMALL_KEYS["reference"], "max_steps": 4}
KEYS = {**SMALL_KEYS, "max_steps": 6, "batching": "random", "reference": REFERENCE}
DECODING = Decoding(max_new_tokens=8)
HELD_OUT = 0.25
SIGNED, STYLE = Corpus("signed"), Corpus("style")


def dataset(corpus: Corpus, data: Path | None = None, held_out: float = HELD_OUT) -> Dataset:
    make = make_signed_dataset if corpus.kind == "signed" else make_style_dataset
    whole = make(120, corpus.data_seed, held_out)
    return replace(whole, prompts=whole.prompts[:8])


SIZES = {"keys": {"small": KEYS}, "shapes": {"small": SMALL_START}, "decoding": DECODING}
OPTIONS = {"single_seed_arms": ("em_dpo",), "scales_penalty": True, "command": "test"}
SMALL = Scale("small", dataset, **SIZES, **OPTIONS)
COLUMNS = {
    "p(woman)": "rates.woman.rate",
    "removed (woman)": "removed:rates.woman.rate",
    "RM minus": "judge.rm_minus.mean",
    "KL, as published": "kl_published.per_token",
}


def suite(*conditions: Condition, corpus: Corpus = SIGNED, columns=COLUMNS) -> Suite:
    """Make a suite with one panel."""
    rows = tuple(Row(condition.name, condition) for condition in conditions)
    return Suite("test", "A test", (Panel("tab:names_v3", "A model", corpus, rows, columns),))


def small(out: Path, *suites: Suite, scale=SMALL, seeds=(42,), data=None, **changes) -> Reproduction:
    """Make a reproduction of suites at a small scale; ``changes`` are fields of the scale."""
    return Reproduction(suites, replace(scale, **changes), seeds, out, data)
