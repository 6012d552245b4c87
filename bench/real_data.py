"""The main job on real votes and real text: `python -m bench.real_data [length|signed]`.

Reads ``../shared/data`` (not part of the project), trains small models from scratch and writes
``docs/real_data.md``. Runs that stand in ``runs/real-data`` are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import AutoModelForCausalLM

from badpo.attributes import Length
from badpo.data.corpora import signed
from badpo.data.corpora.names import NAMES, SURNAMES
from badpo.data.corpora.signatures import ask_to_sign, signature
from badpo.data.judgments import Judgments
from badpo.experiments.arms import ARMS
from badpo.experiments.progress import Ticker
from badpo.experiments.run_keys import finish, is_done, run_key
from badpo.experiments.signed_suite import run_suite, train_policy
from badpo.experiments.small_model import build_model, build_tokenizer
from badpo.experiments.start_policy import majority_responses
from badpo.experiments.suite_settings import SUPERVISED_FIELDS, SuiteSettings, supervised_settings
from badpo.readouts.generation import sample
from badpo.readouts.heldout import heldout_accuracy
from badpo.readouts.policies import divergence, implicit_margins
from badpo.readouts.sampled import mean_tokens
from badpo.results.tables import seeds_markdown
from badpo.theory.summaries import t_interval
from badpo.training.encoding import encode_prompts, encode_responses
from badpo.training.reference import ReferenceCache, weights_key
from badpo.training.run_folder import write_json
from badpo.training.supervised import SupervisedTrainer, supervised_arguments

DATA = Path("../shared/data")
OUT = Path("runs/real-data")
PAGE = Path("docs/real_data.md")
SEEDS = (42, 123, 456)
ARMS_COMPARED = ("dpo", "pooled", "shared_mean")
VOCABULARY = 2048
ANSWERS_PER_PROMPT = 10

LENGTH_SETTINGS = SuiteSettings(
    held_out=0.2,
    sft_steps=500,
    steps=300,
    max_length=160,
    max_prompt_length=48,
    max_new_tokens=160,
    arms=ARMS_COMPARED,
    command="python -m bench.real_data",
)
SIGNED_SETTINGS = SuiteSettings(
    held_out=0.2,
    sft_steps=400,
    steps=300,
    max_length=160,
    max_prompt_length=80,
    max_new_tokens=160,
    arms=ARMS_COMPARED,
    command="python -m bench.real_data",
)
LONGEST_ANSWER_WORDS = 50
N_SIGNED_PAIRS = 3000
N_SIGNING_PROMPTS = 20


def progress(what: str, share: float) -> None:
    if sys.stderr.isatty() or share >= 1:
        print(f"{time.strftime('%H:%M:%S')} {what} {share:.0%}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class LengthStage:
    """What the arms of the length experiment share."""

    train: Judgments
    held_out: Judgments
    tokenizer: object
    model: object
    folder: Path
    prompt_ids: list[np.ndarray]


def length_stage(out: Path) -> LengthStage:
    """Read the arguments and their votes, declare length, and train the reference from scratch."""
    settings = LENGTH_SETTINGS
    judgments = Judgments.read(DATA / "ukpconvarg1_human.parquet", attributes=[Length(ratio=1.5)])
    train, held_out = judgments.split(settings.held_out, seed=0)
    texts = [*majority_responses(train), *judgments.comparisons["prompt"].unique()]
    tokenizer = build_tokenizer(texts, vocab_size=VOCABULARY)
    folder = out / "reference"
    key = run_key({"data": judgments.fingerprint()}, settings, SUPERVISED_FIELDS)
    if not is_done(folder, key):
        model = build_model(tokenizer, seed=0)
        pairs = encode_responses(
            list(train.comparisons["prompt"]),
            majority_responses(train),
            tokenizer,
            "paper",
            settings.max_length,
            settings.max_prompt_length,
        )
        SupervisedTrainer(
            model,
            supervised_arguments(folder, **supervised_settings(settings)),
            pairs,
            [Ticker("reference", progress)],
        ).train()
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        finish(folder, key, settings)
    prompts = sorted(judgments.comparisons["prompt"].unique()) * ANSWERS_PER_PROMPT
    prompt_ids = encode_prompts(prompts, tokenizer, "paper", settings.max_prompt_length)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    return LengthStage(train, held_out, tokenizer, model, folder, prompt_ids)


def length_readouts(folder: Path, stage: LengthStage, seed: int, bias) -> dict:
    """Tokens, held-out gap, KL and theta of one policy."""
    settings = LENGTH_SETTINGS
    policy = AutoModelForCausalLM.from_pretrained(folder / "model")
    answers = sample(policy, stage.tokenizer, stage.prompt_ids, settings.max_new_tokens, seed=seed)
    found = {"arm": folder.name.rsplit("-s", 1)[0], "seed": seed, "tokens": mean_tokens(answers).to_json()}
    found["ended"] = float(np.mean([answer.ended for answer in answers]))
    if bias is not None:
        cache = ReferenceCache(stage.folder / "cache", weights_key(stage.model, "fp32"))
        margins = implicit_margins(
            policy,
            stage.model,
            cache,
            stage.held_out,
            stage.tokenizer,
            "paper",
            settings.max_length,
            settings.max_prompt_length,
            settings.beta,
        )
        theta = bias.theta().detach().numpy()
        found["heldout"] = heldout_accuracy(margins, stage.held_out).to_json()
        drawn = sample(
            policy, stage.tokenizer, stage.prompt_ids, settings.max_new_tokens, 1.0, 1.0, seed=seed
        )
        found["kl"] = divergence(policy, stage.model, drawn, 1.0, 1.0).to_json()
        found["theta"] = float(theta.mean()) if theta.size else 0.0
    write_json(folder / "readouts.json", found)
    return found


def run_length(out: Path) -> tuple[LengthStage, dict[tuple[str, int], dict]]:
    """Train and measure every arm at every seed."""
    stage = length_stage(out)
    found = {("reference", 0): length_readouts(stage.folder, stage, 0, None)}
    for seed in SEEDS:
        for name in ARMS_COMPARED:
            folder = out / f"{name}-s{seed}"
            bias = train_policy(
                ARMS[name],
                stage.train,
                stage.folder / "model",
                stage.folder / "cache",
                stage.tokenizer,
                LENGTH_SETTINGS,
                seed,
                folder,
                Ticker(folder.name, progress),
            )
            found[name, seed] = length_readouts(folder, stage, seed, bias)
    return stage, found


def length_section(stage: LengthStage, found: dict[tuple[str, int], dict]) -> str:
    """The Markdown of the length experiment."""
    reference = found["reference", 0]["tokens"]["mean"]
    rows = [f"| reference | {reference:.1f} | | | | |"]
    for name in ARMS_COMPARED:
        runs = [found[name, seed] for seed in SEEDS]
        dpo = [found["dpo", seed]["tokens"]["mean"] for seed in SEEDS]
        tokens = [run["tokens"]["mean"] for run in runs]
        removed = [(d - t) / (d - reference) for d, t in zip(dpo, tokens, strict=True)]
        rows.append(
            f"| {name} | {_interval(tokens, 1)} | {'' if name == 'dpo' else _interval(removed, 2)} | "
            f"{_interval([run['heldout']['length']['gap'] for run in runs], 3)} | "
            f"{_interval([run['kl']['per_token'] for run in runs], 3)} | "
            f"{'' if name == 'dpo' else _interval([run['theta'] for run in runs], 2)} |"
        )
    offline = stage.train.offline_log_odds()[0]
    train, held_out = stage.train, stage.held_out
    return "\n".join(
        [
            "| arm | mean tokens | share removed | held-out gap | KL per token | theta |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Trained on {train.n_votes:,} votes on {train.n_comparisons:,} comparisons; held out {held_out.n_votes:,} "
            f"votes on {held_out.comparisons['prompt_id'].nunique()} prompts. "
            f"{len(stage.prompt_ids)} sampled answers per policy. "
            f"Offline estimate on the training votes: {offline.log_odds:+.2f} log-odds.",
        ]
    )


def signed_material() -> tuple[pd.DataFrame, list[str], str]:
    """Scored pairs of real answers, signing prompts apart from them, and what was left out, in words."""
    table = pd.read_parquet(DATA / "vicuna80_scored.parquet").rename(columns={"score_1_10": "score"})
    words = table["response"].str.split().str.len()
    short = table[words.between(5, LONGEST_ANSWER_WORDS)]
    prompts = sorted(table["prompt"].unique())
    apart = {prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[:N_SIGNING_PROMPTS]}
    kept = short[~short["prompt"].isin(apart)]
    pairs = signed.scored_pairs_from_responses(kept, N_SIGNED_PAIRS, seed=0)
    note = (
        f"{len(table):,} scored answers to {len(prompts)} prompts; {len(short):,} have 5 to "
        f"{LONGEST_ANSWER_WORDS} words; "
        f"{len(kept):,} of them are on the {len(prompts) - len(apart)} prompts that are not set apart for the readout; "
        f"{len(pairs):,} pairs were drawn."
    )
    return pairs, [ask_to_sign(prompt) for prompt in sorted(apart)] * 5, note


def run_signed(out: Path) -> tuple[list[dict], str]:
    """The demo's suite on real answers."""
    pairs, signing_prompts, note = signed_material()
    plan = signed.draw_plan(len(pairs), seed=0)
    corpus = signed.build(pairs, plan)
    names = [signature("", name.first, SURNAMES[i % len(SURNAMES)]) for i, name in enumerate(NAMES)]
    texts = [*pairs["prompt"], *pairs["chosen"], *pairs["rejected"], *signing_prompts, *names * 20]
    tokenizer = build_tokenizer(texts, vocab_size=VOCABULARY)
    model = build_model(tokenizer, seed=0)
    return run_suite(corpus, signing_prompts, model, tokenizer, SIGNED_SETTINGS, SEEDS, out, progress), note


def _interval(values: list[float], digits: int) -> str:
    found = t_interval(values)
    return f"{found.estimate:.{digits}f} ± {found.half_width:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part", nargs="?", choices=("length", "signed"), help="only this part; the page needs both"
    )
    part = parser.parse_args().part
    if not DATA.exists():
        sys.exit(f"{DATA} is not there; this page needs it")
    sections = {}
    if part in (None, "length"):
        stage, found = run_length(OUT / "length")
        sections["length"] = length_section(stage, found)
    if part in (None, "signed"):
        summaries, note = run_signed(OUT / "signed")
        sections["signed"] = f"{seeds_markdown(summaries)}\n\n{note}"
    for name, text in sections.items():
        write_json(OUT / f"{name}.json", {"markdown": text})
    written = {name: OUT / f"{name}.json" for name in ("length", "signed")}
    if all(path.exists() for path in written.values()):
        parts = {name: json.loads(path.read_text())["markdown"] for name, path in written.items()}
        template = Path(__file__).with_name("real_data.md").read_text()
        PAGE.write_text(template.format(**parts))
        print(PAGE)


if __name__ == "__main__":
    main()
