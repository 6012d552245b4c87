"""Measure whether a policy trained at the defaults learns the votes' bias: `python -m bench.defaults --screen
--confirm`.

Tiny models are trained on votes with a planted bias: DPO, two placebos and BA-DPO, all from one reference. A placebo
is DPO on votes without bias, drawn with the same random numbers. The tilt is the mean margin toward the attribute on
held-out comparisons, computed by a forward pass in this module. Every cell and arm is a JSON line in
``runs/bench/defaults/``; existing lines are not computed again. With both options the command writes
``docs/results/defaults.md``.
"""

import argparse
import copy
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import torch
import transformers

from badpo.attributes import Attribute, Length, LengthWords, Markdown, WordList
from badpo.data.judgments import Judgments
from badpo.estimation.alternative_estimators import fit_quality_prior
from badpo.objective.theta import AdamSteps, AnchoredFit
from badpo.theory.summaries import ratio_of_sums, t_interval
from badpo.training.config import BADPOConfig
from badpo.training.inputs import make_start_votes
from badpo.training.trainer import BADPOTrainer

FOLDER = Path("runs/bench/defaults")
GOOD, PLAIN, BAD = ([f"{kind}{i}" for i in range(4)] for kind in ("good", "plain", "bad"))
FILLER, TOPICS = [f"f{i}" for i in range(6)], [f"t{i}" for i in range(8)]
BOLD = [f"**{word}**" for word in FILLER]
WOMEN, MEN = ["anna", "maria"], ["john", "peter"]
SPECIAL = ["<pad>", "<end>", "<unk>"]
WORDS = [*SPECIAL, *GOOD, *PLAIN, *BAD, *FILLER, *BOLD, *TOPICS, *WOMEN, *MEN, "from"]
N_SLOTS, N_LONGER, UNIT = (
    6,
    7,
    4,
)  # words of quality, words that lengthen a response, number of words in a unit of length
QUALITY, BIAS, SPREAD = (
    0.45,
    0.9,
    0.4,
)  # log-odds for each good word; mean and sd of the annotators' biases
# At this rate the placebo's log-probabilities fall by 0.03 nats a token in 300 steps and by 0.2 to 0.4 in 1,000; at
# 1e-3 they fall by 0.6 in 300. It was chosen by this drift alone.
BETA, BATCH, RATE = 0.1, 16, 2e-4
STEPS, FACTORS = (30, 100, 300, 1000), (0.2, 1.0, 5.0)


# -- corpora -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Planted comparisons and votes: what is declared, who votes how often, and whether quality is entangled.

    If ``entangled``, responses with the attribute have a good word more for each unit, which the votes do not count:
    a policy that learns which words are good tilts toward the attribute, though the votes hold the two independent.
    If ``has_merit`` too, there are two such words, the votes count them, three annotators have no bias, and a fifth of
    the comparisons are swap pairs. If ``is_mirrored``, every comparison stands twice, with the attribute on the other
    side and everything else alike: quality and attribute are then independent in the corpus itself, and the placebo's
    votes have no bias by chance.
    """

    attribute: str
    entangled: bool
    seed: int
    n_comparisons: int = 1000
    n_annotators: int = 12
    votes_each: int = 3
    has_merit: bool = False
    is_mirrored: bool = True


ATTRIBUTES: dict[str, Attribute] = {
    "names": WordList("woman", WOMEN),
    "length": Length(ratio=1.5),
    "markdown": Markdown(),
    "words": LengthWords(threshold=0.0, unit=UNIT),
}


@dataclass(frozen=True)
class Planted:
    """Training votes with bias, training votes without bias, and held-out votes without bias, as tables."""

    biased: Judgments
    placebo: Judgments
    held_out: Judgments


def plant(corpus: Corpus) -> Planted:
    """Draw a corpus; biased votes and placebo votes use the same random numbers."""
    rng = np.random.default_rng(
        [corpus.seed, list(ATTRIBUTES).index(corpus.attribute), corpus.entangled]
    )
    n, m, each = 2 * corpus.n_comparisons, corpus.n_annotators, corpus.votes_each
    copies = 2 if corpus.is_mirrored else 1
    n_drawn, drawn = n // copies, np.repeat(np.arange(n // copies), copies)
    top = 2 * UNIT if corpus.attribute == "words" else 1
    unit = rng.integers(0, top + 1, (n_drawn, 2))[drawn] / (UNIT if corpus.attribute == "words" else 1)
    if corpus.is_mirrored:
        unit[1::2] = unit[1::2, ::-1]
    counts = rng.multinomial(N_SLOTS, [0.3, 0.4, 0.3], (n_drawn, 2))[drawn]
    quality = QUALITY * (counts[:, 0] - counts[:, 1]) @ [1, 0, -1]
    texts = np.array(
        [
            [_text(corpus, *one, rng) for one in zip(c, u, strict=True)]
            for c, u in zip(counts, unit, strict=True)
        ],
        dtype=object,
    )
    theta = BIAS + SPREAD * rng.standard_normal(m)
    if corpus.has_merit:
        theta[:3] = 0.0
        quality = quality_of_texts(texts)
        is_swap = np.arange(n) % 10 < 2
        for row in np.flatnonzero(is_swap):
            body, name = texts[row, 0].rsplit(" ", 1)[0], texts[row, 1].rsplit(" ", 1)[1]
            texts[row, 1] = f"{body} {name}"
        quality[is_swap] = 0.0
    annotator = np.array([rng.choice(m, each, replace=m < each) for _ in range(n_drawn)])[drawn]
    uniform, difference = rng.random((n_drawn, each))[drawn], unit[:, :1] - unit[:, 1:]
    prompts = rng.choice(TOPICS, (n, 3))
    parts = []
    for scale, rows in ((1.0, slice(0, n // 2)), (0.0, slice(0, n // 2)), (0.0, slice(n // 2, n))):
        logit = quality[:, None] + scale * theta[annotator] * difference
        wins = uniform < 1 / (1 + np.exp(-logit))
        names = {"comparison_id": np.arange(n), "prompt": [" ".join(p) for p in prompts]}
        table = pd.DataFrame(names | {"response_a": texts[:, 0], "response_b": texts[:, 1]})
        votes = table.iloc[rows].loc[lambda t: t.index.repeat(each)]
        votes = votes.assign(
            prompt_id=votes["comparison_id"], winner=np.where(wins[rows].ravel(), "a", "b")
        )
        votes["annotator"] = [f"person {k}" for k in annotator[rows].ravel()]
        votes["annotator_class"] = [f"class {k % 2}" for k in annotator[rows].ravel()]
        kept = ["kind"] if corpus.has_merit else []
        if kept:
            votes["kind"] = np.where(is_swap[votes["comparison_id"]], "swap", "natural")
        parts.append(Judgments.read(votes, attributes=[ATTRIBUTES[corpus.attribute]], keep=kept))
    return Planted(*parts)


def _text(corpus: Corpus, counts: np.ndarray, unit: float, rng: np.random.Generator) -> str:
    """Make a response with these numbers of good and plain words, and of units of the attribute."""
    counts = counts.copy()
    if corpus.entangled:
        extra = int(rng.poisson(unit)) if corpus.attribute == "words" else int(unit)
        moved = min(extra * (2 if corpus.has_merit else 1), counts[1])
        counts += [moved, -moved, 0]
    slots = [
        str(rng.choice(kind))
        for kind, k in zip((GOOD, PLAIN, BAD), counts, strict=True)
        for _ in range(k)
    ]
    rng.shuffle(slots)
    n_filler = {"length": N_LONGER * unit, "words": UNIT * unit}.get(corpus.attribute, 1)
    filler = [str(word) for word in rng.choice(FILLER, int(n_filler))]
    if corpus.attribute == "markdown":
        filler = [str(rng.choice(BOLD if unit else FILLER))]
    if corpus.attribute == "names":
        filler = ["from", str(rng.choice(WOMEN if unit else MEN))]
    return " ".join([*slots, *filler])


def quality_of_texts(texts: np.ndarray) -> np.ndarray:
    """Compute the difference in quality of two responses from their good and bad words, in log-odds."""
    value = dict.fromkeys(GOOD, 1) | dict.fromkeys(BAD, -1)
    counts = [[sum(value.get(word, 0) for word in text.split()) for text in pair] for pair in texts]
    return QUALITY * np.array(counts) @ [1, -1]


def make_tokenizer():
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special)


# -- models ------------------------------------------------------------------------------------------------------


def encoded(judgments: Judgments, tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded token ids of prompt and response of both sides, and a mask of the response tokens."""
    table, rows = judgments.comparisons, []
    for prompt, *sides in table[["prompt", "response_a", "response_b"]].itertuples(index=False):
        first = tokenizer(prompt)["input_ids"]
        rows += [(first, tokenizer(side)["input_ids"] + [tokenizer.eos_token_id]) for side in sides]
    width = max(len(a) + len(b) for a, b in rows)
    ids = torch.tensor([a + b + [0] * (width - len(a) - len(b)) for a, b in rows])
    mask = torch.tensor([[0] * len(a) + [1] * len(b) + [0] * (width - len(a) - len(b)) for a, b in rows])
    return ids, mask


def log_probabilities(model, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of every response by a padded forward pass."""
    logits = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    return (logits.gather(2, ids[:, 1:, None])[..., 0] * mask[:, 1:]).sum(dim=1)


def make_reference(corpus: Corpus, planted: Planted, tokenizer):
    """Train a small Llama for a few supervised steps on both responses of every comparison."""
    torch.manual_seed(corpus.seed)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids, mask = encoded(planted.biased, tokenizer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        some = torch.randint(len(ids), (64,))
        loss = -log_probabilities(model, ids[some], mask[some]).sum() / mask[some].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


# -- cells and arms ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One corpus, one number of steps, one learning rate and one training seed."""

    corpus: Corpus
    n_steps: int
    factor: float
    seed: int

    @property
    def name(self) -> str:
        one = self.corpus
        pool = f"{one.n_annotators}x{one.votes_each}x{one.n_comparisons}"
        kind = "e" if one.entangled else "i"
        trained = f"n{self.n_steps}-r{self.factor}-t{self.seed}"
        return f"{one.attribute}-{kind}-{pool}-d{one.seed}-{trained}"


# For each arm, the variant of the bias term and the rule that updates theta (None for the default).
ARMS: dict[str, tuple[str, str | None]] = {
    "dpo": ("none", None),
    "placebo": ("none", None),
    "placebo_2": ("none", None),
    "pooled": ("pooled", None),
    "shared_mean": ("shared_mean", None),
}
COLD_AND_WARM = {
    f"{variant}/{rule}": (variant, rule)
    for rule in ("adam-zero", "adam-offline")
    for variant in ("pooled", "shared_mean")
}
# Candidates from the simplest to the most complex; the first one that passes is chosen.
CANDIDATE_RULES = ("fixed", "warm-1e-2", "warm-3e-2", "warm-1e-1", "profile")
CANDIDATES = {f"pooled/{rule}": ("pooled", rule) for rule in CANDIDATE_RULES}


class Profile(AnchoredFit):
    """Rule that sets theta to its optimum given the present margins; a simulation predicted that it fails."""

    projects = False


def conditional_theta(trainer: BADPOTrainer) -> torch.Tensor:
    """Estimate the shared bias by the conditional likelihood, and shrunken deviations from it."""
    judgments, rule = trainer.judgments, trainer.theta_rule
    comparison, sign = (judgments.votes[name].to_numpy() for name in ("comparison", "sign"))
    delta = comparison_delta(judgments)[:, None]
    level = fit_quality_prior(comparison, sign, np.zeros(len(sign)), delta).slope
    return rule.start - rule.start.mean(dim=0) + torch.from_numpy(level)


def candidate_rule(trainer: BADPOTrainer, rule: str):
    """Return the rule of a candidate that the trainer does not offer as a setting."""
    if rule == "profile":
        return Profile(trainer.bias, trainer.objective.losses, make_start_votes(trainer.judgments))
    start = conditional_theta(trainer)
    trainer.bias.requires_grad_(True)
    trainer.bias.start_at(start)
    return AdamSteps(
        trainer.bias, float(rule.removeprefix("warm-")) if rule.startswith("warm-") else 0.0
    )


def train_arm(
    cell: Cell, arm: tuple[str, str | None], votes: Judgments, reference, tokenizer, seed: int
):
    """Train an arm with the trainer's defaults and the candidate's rule; return the policy and the mean of theta."""
    variant, rule = arm
    with tempfile.TemporaryDirectory() as folder:
        args = BADPOConfig(
            folder, reference_cache=f"{folder}/cache", bias=variant, beta=BETA, seed=seed,
            learning_rate=RATE * cell.factor, max_steps=cell.n_steps, per_device_train_batch_size=BATCH,
            lr_scheduler_type="linear", use_cpu=True, bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no",
            bias_fit="adam" if rule and rule.startswith("adam") else "anchored",
            warm_start="offline" if rule == "adam-offline" else "zero",
        )  # fmt: skip
        trainer = BADPOTrainer(
            copy.deepcopy(reference), args=args, train_dataset=votes, processing_class=tokenizer
        )
        trainer.remove_callback(transformers.PrinterCallback)
        if rule in CANDIDATE_RULES:
            trainer.theta_rule = candidate_rule(trainer, rule)
        trainer.train()
    theta = float(trainer.bias.theta().mean()) if trainer.bias.parts else 0.0
    return trainer.model.eval(), theta


def tilt_of(margins: np.ndarray, judgments: Judgments) -> float:
    """Compute the coefficient of the margins on the difference in the attribute, over comparisons."""
    delta = comparison_delta(judgments)
    return float(margins @ delta / (delta @ delta))


def comparison_delta(judgments: Judgments) -> np.ndarray:
    delta = np.zeros(judgments.n_comparisons)
    delta[judgments.votes["comparison"].to_numpy()] = judgments.delta[:, 0]
    return delta


def margins_of(model, reference_logps: torch.Tensor, data) -> np.ndarray:
    with torch.no_grad():
        ratio = (log_probabilities(model, *data) - reference_logps).view(-1, 2)
    return (BETA * (ratio[:, 0] - ratio[:, 1])).double().numpy()


def run_cells(work: list[tuple[Cell, dict]], known: set) -> Iterator[dict[str, Any]]:
    """Compute the missing lines of cells and arms on one corpus."""
    todo = [
        (cell, name, arm)
        for cell, arms in work
        for name, arm in arms.items()
        if (cell.name, name) not in known
    ]
    if not todo:
        return
    set_quiet()
    corpus, tokenizer = work[0][0].corpus, make_tokenizer()
    planted = plant(corpus)
    reference = make_reference(corpus, planted, tokenizer)
    sets = {"held_out": planted.held_out, "train": planted.biased}
    data = {name: encoded(judgments, tokenizer) for name, judgments in sets.items()}
    with torch.no_grad():
        base = {name: log_probabilities(reference, *each) for name, each in data.items()}
    votes = planted.held_out.votes
    sign, of = votes["sign"].to_numpy(), votes["comparison"].to_numpy()
    same = planted.held_out.delta[:, 0] == 0
    for cell, name, arm in todo:
        start = time.process_time()
        on = planted.placebo if name.startswith("placebo") else planted.biased
        seed = cell.seed + (1000 if name == "placebo_2" else 0)
        model, theta = train_arm(cell, arm, on, reference, tokenizer, seed)
        margins = {each: margins_of(model, base[each], data[each]) for each in sets}
        u = margins["held_out"][of]
        yield {
            "cell": cell.name, **asdict(corpus), "n_steps": cell.n_steps, "factor": cell.factor,
            "training_seed": cell.seed, "arm": name, "theta": theta,
            "tilt": tilt_of(margins["held_out"], planted.held_out),
            "train_tilt": tilt_of(margins["train"], planted.biased),
            "accuracy": float((sign * u > 0)[same].mean()) if same.any() else None,
            "margins": margins["held_out"].round(5).tolist(),
            "delta": comparison_delta(planted.held_out).tolist(),
            "seconds": time.process_time() - start,
        }  # fmt: skip


def set_quiet() -> None:
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


# -- the grid ----------------------------------------------------------------------------------------------------


def screening() -> list[tuple[Cell, dict]]:
    """Return twelve cells with their own seeds, half of them entangled, with all candidates."""
    lengths = ((30, 5.0), (300, 1.0), (1000, 5.0))
    cells = [
        Cell(Corpus(name, (i + j) % 2 == 1, 1100 + i), *length, 78)
        for (i, name), (j, length) in product(enumerate(ATTRIBUTES), enumerate(lengths))
    ]
    return [(cell, ARMS | CANDIDATES) for cell in cells]


def confirmation() -> list[tuple[Cell, dict]]:
    """Return the grid: four corpora, four numbers of steps, three rates, two data seeds and two training seeds.

    A third of the cells is entangled.
    """
    grid = []
    places = product(enumerate(ATTRIBUTES), enumerate(STEPS), enumerate(FACTORS))
    for (i, name), (j, n_steps), (k, factor) in places:
        is_entangled = (i + j + k) % 3 == 0
        for data_seed, seed in product((0, 1), (42, 123)):
            cell = Cell(Corpus(name, is_entangled, data_seed), n_steps, factor, seed)
            # the paper's Adam, in the cells at the middle rate with the first seeds, except for the longest
            also = factor == 1.0 and n_steps < STEPS[-1] and (data_seed, seed) == (0, 42)
            grid.append((cell, ARMS | COLD_AND_WARM if also else ARMS))
    return grid + variants()


def precision() -> list[tuple[Cell, dict]]:
    """Return more data seeds for the cells with 30 steps at the highest rate, whose noise exceeds the effect of DPO."""
    return [
        (Cell(Corpus(name, (i + 2) % 3 == 0, seed), 30, FACTORS[-1], 42), ARMS)
        for (i, name), seed in product(enumerate(ATTRIBUTES), range(2, 50))
    ]


def variants() -> list[tuple[Cell, dict]]:
    """Return one cell each: classes, a bias for each annotator, pools of 1 and of 60, and two votes per annotator."""
    few = {"n_annotators": 1500, "n_comparisons": 1000}
    pools: list[tuple[dict, str]] = [
        ({}, "class"), ({}, "per_annotator"), ({"n_annotators": 1, "votes_each": 1}, "shared_mean"),
        ({"n_annotators": 60}, "shared_mean"), (few, "shared_mean"), (few, "per_annotator"),
    ]  # fmt: skip
    common = {name: ARMS[name] for name in ("dpo", "placebo", "placebo_2")}
    return [
        (Cell(Corpus("names", False, 2, **pool), 300, 1.0, 42), common | {variant: (variant, None)})
        for pool, variant in pools
    ]


def run_all(grid: list[tuple[Cell, dict]], n_processes: int, folder: Path) -> list[dict[str, Any]]:
    """Compute every line of a grid, or read the line from the file of its corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    work: dict[str, list] = {}
    for cell, arms in grid:
        # one process computes all cells of a corpus with the same number of steps, because they share a reference
        work.setdefault(cell.name.rpartition("-r")[0], []).append((cell, arms))
    longest_first = sorted(work, key=lambda key: -work[key][0][0].n_steps)
    if n_processes == 1:
        for key in longest_first:
            write_lines(folder / f"{key}.jsonl", work[key])
    else:
        with ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn")) as pool:
            started = [
                pool.submit(write_lines, folder / f"{key}.jsonl", work[key]) for key in longest_first
            ]
            for done in as_completed(started):
                done.result()
    wanted = {(cell.name, arm) for cell, arms in grid for arm in arms}
    # two entries of the grid can share a cell, including DPO and the placebos
    lines = {
        (line["cell"], line["arm"]): line for key in work for line in read_lines(folder / f"{key}.jsonl")
    }
    return [line for run, line in lines.items() if run in wanted]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a file, and ignore a line that a killed process left unfinished."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1] if line.endswith("}")]


def write_lines(path: Path, work: list[tuple[Cell, dict]]) -> None:
    """Append the missing lines of some cells on one corpus."""
    lines = read_lines(path)
    known = {(line["cell"], line["arm"]) for line in lines}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with path.open("a") as file:
        for line in run_cells(work, known):
            file.write(json.dumps(line) + "\n")
            file.flush()


# -- the page ----------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "results" / "defaults.md"
TEMPLATE = Path(__file__).with_name("defaults_page.md")
LARGEST_SHARE, LARGEST_ROOT, OF_PLACEBO, LARGEST_LOSS = 0.10, 0.05, 1.5, 0.01
SCREENED_SHARE = 0.15
# in order of preference
RULES = {
    **{rule: (f"pooled/{rule}",) for rule in CANDIDATE_RULES if rule != "profile"},
    "anchored": ("pooled", "shared_mean"),
    "profile": ("pooled/profile",),
}


def group_row(lines: pd.DataFrame, arm: str) -> dict[str, Any]:
    """Compute the share of DPO's excess over the placebo that an arm leaves, with its root mean square.

    Cells that differ only in their seeds are one stratum, and every stratum has the same weight.
    """
    strata = ["attribute", "n_steps", "factor", "entangled", "n_annotators"]
    tilt = lines.pivot_table(index=[*strata, "cell"], columns="arm", values="tilt", sort=False)
    # only cells with the arm
    tilt = tilt[tilt[arm].notna()]
    excess, left = tilt["dpo"] - tilt["placebo"], tilt[arm] - tilt["placebo"]
    weight = 1 / left.groupby(level=strata, sort=False).transform("size")
    share = ratio_of_sums(weight * left, weight * excess)
    accuracy = lines.pivot_table(index="cell", columns="arm", values="accuracy", sort=False)

    def root(difference: pd.Series) -> float:
        return float(np.sqrt((weight * difference**2).sum() / weight.sum()))

    return {
        "cells": len(tilt), "DPO - placebo": float((weight * excess).sum() / weight.sum()),
        "left": share.estimate, "±": share.half_width, "root mean square": root(left),
        "of a second placebo": root(tilt["placebo_2"] - tilt["placebo"]),
        "accuracy lost": float((accuracy["dpo"] - accuracy[arm]).mean()),
    }  # fmt: skip


def missed_bounds(row: dict[str, Any], largest_share: float) -> list[str]:
    """Return the columns of a row that miss their bounds."""
    bounds = {
        "left": largest_share,
        "root mean square": max(LARGEST_ROOT, OF_PLACEBO * row["of a second placebo"]),
        "accuracy lost": LARGEST_LOSS,
    }
    return [
        name
        for name, bound in bounds.items()
        if (abs(row[name]) if name == "left" else row[name]) > bound
    ]


def format_row(row: dict[str, Any], missed: list[str]) -> dict[str, str]:
    """Format the figures of a row with three decimals; figures that miss their bounds are bold."""
    cells = {
        name: f"{value:.3f}".replace("nan", "–") if isinstance(value, float) else str(value)
        for name, value in row.items()
    }
    return {name: f"**{text}**" if name in missed else text for name, text in cells.items()}


def screen_rules(lines: pd.DataFrame) -> tuple[str, str]:
    """Write the table of the screening, and the sentence that applies the rule of choice to the table."""
    kinds = {
        "all": lines["n_steps"] > 0, "30 steps": lines["n_steps"] == 30, "1,000 steps": lines["n_steps"] == 1000,
        "independent": ~lines["entangled"], "entangled": lines["entangled"],
    }  # fmt: skip
    rows, largest, passed = [], {}, []
    for rule, arms in RULES.items():
        shares, misses = [], False
        for arm in arms:
            whole = group_row(lines, arm)
            left = {f"left, {kind}": group_row(lines[of], arm)["left"] for kind, of in kinds.items()}
            missed = missed_bounds(whole, SCREENED_SHARE)
            missed += [name for name, share in left.items() if abs(share) > SCREENED_SHARE]
            figures = {
                **left,
                **{name: whole[name] for name in ("root mean square", "of a second placebo")},
            }
            label = rule if len(arms) == 1 else f"{rule}, {arm}"
            rows.append({"rule": label, **format_row(figures, missed)})
            shares += [abs(share) for share in left.values()]
            misses |= any(name in figures for name in missed)
        largest[rule] = max(shares)
        if not misses:
            passed.append(rule)
    if passed:
        decision = f"The simplest candidate that passes is `{passed[0]}`."
    else:
        best = min(largest, key=lambda rule: largest[rule])
        others = ", ".join(f"`{rule}` {largest[rule]:.3f}" for rule in largest if rule != best)
        decision = (
            f"No candidate passes. The rule then takes the candidate with the smallest largest share, which is "
            f"`{best}` with {largest[best]:.3f} over its variants ({others})."
        )
    return show_table(rows), decision


def cells_table(lines: pd.DataFrame, arms: list[str]) -> str:
    """Write each cell's tilts minus the placebo's tilt, and the placebo's tilt."""
    tilt = lines.pivot_table(index="cell", columns="arm", values="tilt", sort=False)
    shown = tilt[arms].sub(tilt["placebo"], axis=0)
    shown.insert(0, "placebo", tilt["placebo"])
    return shown.reset_index().to_markdown(index=False, floatfmt=".3f")


def confirmation_tables(lines: pd.DataFrame) -> str:
    """Write the tables by corpus, number of steps, rate and quality, for other pools, and for the paper's Adam."""
    lines, more = split_precision(lines)
    usual = lines["n_annotators"].eq(12) & lines["seed"].lt(2)
    grid, parts = lines[usual], []
    for title, column in (
        ("corpus", "attribute"),
        ("steps", "n_steps"),
        ("rate, times r", "factor"),
        ("quality is entangled", "entangled"),
    ):
        rows = []
        for value, of in grid.groupby(column, sort=False):
            for arm in RULES["anchored"]:
                row = group_row(of, arm)
                missed = missed_bounds(row, LARGEST_SHARE)
                rows.append({title: str(value), "variant": arm, **format_row(row, missed)})
        if column == "n_steps":
            short = pd.concat([grid[grid["n_steps"] == 30], more])
            for arm in RULES["anchored"]:
                row = group_row(short, arm)
                missed = missed_bounds(row, LARGEST_SHARE)
                rows.append({title: "30, more seeds", "variant": arm, **format_row(row, missed)})
        parts.append(show_table(rows))
    rows = [
        {"cell": cell, "variant": arm, **format_row(group_row(of, arm), [])}
        for cell, of in lines[~usual].groupby("cell", sort=False)
        for arm in of["arm"].unique()
        if arm in ("class", "per_annotator", "shared_mean")
    ]
    parts.append(
        "Other variants and pools (annotators x votes on a comparison x comparisons), one cell each:"
    )
    parts.append(show_table(rows))
    adam = grid[grid["cell"].isin(grid.loc[grid["arm"].isin(COLD_AND_WARM), "cell"])]
    rows = [
        {"rule": arm, **format_row(group_row(adam, arm), [])}
        for arm in (*COLD_AND_WARM, *RULES["anchored"])
    ]
    parts.append(
        "The paper's Adam, from zero and from the log-odds of the votes, beside the default in the same cells:"
    )
    parts.append(show_table(rows))
    return "\n\n".join(parts)


def split_precision(lines: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Separate the lines of the grid and its variants from the lines of further seeds (`precision`)."""
    is_further = lines["cell"].isin({cell.name for cell, _ in precision()})
    return lines[~is_further], lines[is_further]


def compare_with_dpo(lines: pd.DataFrame) -> str:
    """Return the cells in which BA-DPO's tilt is significantly above DPO's, over held-out comparisons."""
    arms = RULES["anchored"]
    found, n, n_nearer = [], 0, 0
    for cell, of in lines.groupby("cell", sort=False):
        by_arm = of.set_index("arm")
        delta = np.array(by_arm.loc["dpo", "delta"])
        for arm in set(arms) & set(by_arm.index):
            difference = np.subtract(by_arm.loc[arm, "margins"], by_arm.loc["dpo", "margins"])
            # a comparison and its mirror image are one cluster
            excess = ratio_of_sums(difference * delta, delta**2, np.arange(len(delta)) // 2)
            n += 1
            if excess.low > 0:
                gaps = {name: by_arm.loc[name, "tilt"] for name in ("placebo", "placebo_2", "dpo", arm)}
                n_nearer += abs(gaps[arm] - gaps["placebo"]) < abs(gaps["dpo"] - gaps["placebo"])
                found.append(
                    {
                        "cell": cell,
                        "variant": arm,
                        **{name: f"{value:.3f}" for name, value in gaps.items() if name != arm},
                        "BA-DPO": f"{gaps[arm]:.3f}",
                        "BA-DPO - DPO": f"{excess.estimate:.3f} ± {excess.half_width:.3f}",
                    }
                )
    if not found:
        return f"BA-DPO's tilt is above DPO's by more than its confidence interval in none of {n} runs."
    return (
        f"BA-DPO's tilt is above DPO's by more than the 95 % confidence interval over held-out comparisons in "
        f"{len(found)} of {n} runs. In {n_nearer} of these {len(found)} it is nearer to the placebo's than DPO's is, "
        f"because DPO's tilt is below the placebo's:\n\n{show_table(found)}"
    )


def confirmed_cells(lines: pd.DataFrame) -> str:
    """Compute the mean over seeds of each cell's tilts minus the placebo's tilt."""
    usual = lines[lines["n_annotators"].eq(12) & lines["seed"].lt(2)]
    keys = ["attribute", "n_steps", "factor", "entangled"]
    tilt = usual.pivot_table(
        index=[*keys, "seed", "training_seed"], columns="arm", values="tilt", sort=False
    )
    apart = tilt[["dpo", "placebo_2", *RULES["anchored"]]].sub(tilt["placebo"], axis=0)
    rows = []
    for key, of in apart.groupby(level=keys, sort=False):
        intervals = {arm: t_interval(of[arm]) for arm in of}
        row = dict(zip(("corpus", "steps", "rate", "entangled"), map(str, key), strict=True))
        rows.append(
            row
            | {arm: f"{each.estimate:.3f} ± {each.half_width:.3f}" for arm, each in intervals.items()}
        )
    return show_table(rows)


def show_table(rows: list[dict[str, str]]) -> str:
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


def write_page(screened: pd.DataFrame, confirmed: pd.DataFrame) -> str:
    """Write the page of both stages."""
    screening_figures, decision = screen_rules(screened)
    candidates = [arm for arms in RULES.values() for arm in arms]
    template = jinja2.Template(
        TEMPLATE.read_text(), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    page = template.render(
        screening=screening_figures,
        decision=decision,
        screened_cells=cells_table(screened, ["dpo", "placebo_2", *candidates]),
        n_cells=split_precision(confirmed)[0]["cell"].nunique(),
        confirmation=confirmation_tables(confirmed),
        above=compare_with_dpo(split_precision(confirmed)[0]),
        confirmed_cells=confirmed_cells(confirmed),
    )
    PAGE.write_text(page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--screen", action="store_true", help="all candidates on twelve cells")
    parser.add_argument("--confirm", action="store_true", help="the default on the whole grid")
    parser.add_argument("--processes", type=int, default=1, help="how many cells at once")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the lines are kept")
    options = parser.parse_args()
    run = partial(run_all, n_processes=options.processes, folder=options.folder)
    screened = pd.DataFrame(run(screening())) if options.screen else None
    confirmed = pd.DataFrame(run([*confirmation(), *precision()])) if options.confirm else None
    if screened is not None and confirmed is not None:
        print(write_page(screened, confirmed))
    elif screened is not None:
        print("\n\n".join(screen_rules(screened)))
    elif confirmed is not None:
        print(confirmation_tables(confirmed), compare_with_dpo(confirmed), sep="\n\n")


if __name__ == "__main__":
    main()
