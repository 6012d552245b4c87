"""Votes and prompts of a corpus, before any model: the bundled ones, or the public ones."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.pool import log_odds_row
from badpo.data.attributes import Length, Markdown, plain_text
from badpo.data.files import Json, appearing
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.data.tables import read_table
from badpo.readouts.names import NAMES, SURNAMES, signature
from badpo.results.words import lean_text, percent
from badpo.theory import Floats
from badpo_paper.corpora import bundled, multipref, signed, ultrafeedback
from badpo_paper.corpora.published import GateRow, Source, compared, gate_table
from badpo_paper.suites import Corpus

N_PAIRS, N_STYLE_PAIRS = 9000, 7177
N_DEMO_PAIRS, N_DEMO_PROMPTS = 4450, 150
N_EVALUATION, N_FRESH = 300, 3000
HELD_OUT = 0.25  # of the bundled corpora


@dataclass(frozen=True)
class Dataset:
    """Votes and prompts, before any model.

    ``prompts`` are what policies are asked, as often as they stand there; a small tokenizer is built from ``texts``;
    ``placebo`` are the votes as planted annotators without a bias would have cast them, None of votes of real people;
    ``held_out`` is the share of prompts held out, and the evaluation prompts were drawn with the same; ``gate`` has the
    statistics of a public corpus beside the published ones.
    """

    judgments: Judgments
    planted: Floats | None
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    held_out: float
    gate: tuple[GateRow, ...] = ()
    placebo: Judgments | None = None

    def split(self) -> tuple[Judgments, Judgments]:
        """The judgments to train on, and those held out."""
        return self.judgments.split(self.held_out, seed=0)


def votes_before(judgments: Judgments) -> Json:
    """How every declared attribute stands in the votes."""
    found = zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True)
    return {name: log_odds_row(odds, judgments.n_votes) for name, odds in found}


def gate_lines(datasets: Iterable[Dataset]) -> list[str]:
    """The statistics of public corpora beside the published ones, each table once, and how they agree."""
    gates = dict.fromkeys(dataset.gate for dataset in datasets if dataset.gate)
    title = "statistics of the votes before training:"
    return [line for gate in gates for line in (title, *gate_table(gate))]


def lean_lines(judgments: Judgments) -> list[str]:
    """What votes lean toward before anything is trained: the audit's figures of the pool, one line an attribute."""
    lines = [
        f"{judgments.n_votes:,} votes of {judgments.n_annotators:,} annotators on "
        f"{judgments.n_comparisons:,} comparisons; before anything is trained they lean"
    ]
    for name, row in votes_before(judgments).items():
        wins = f"chosen in {percent(row['carrier_wins'])} of the {row['n_cross']:,} votes"
        lines.append(f"  toward {name}: {wins} where the sides differ, log-odds {lean_text(row)}")
    return lines


# -- what a scale trains on -------------------------------------------------------------------------------------------


def bundled_votes(corpus: Corpus, data: Path | None = None) -> Dataset:
    """The bundled answers: signed with names, or with votes on length and Markdown, which a file can replace."""
    if corpus.kind == "signed":
        return bundled_signed(N_PAIRS, corpus.data_seed)
    return bundled_style(N_STYLE_PAIRS, corpus.data_seed) if data is None else own_style(data)


def demo_votes(corpus: Corpus, data: Path | None = None) -> Dataset:
    """The demo's part of the bundled answers, signed."""
    return bundled_signed(N_DEMO_PAIRS, corpus.data_seed, n_prompts=N_DEMO_PROMPTS)


def public_votes(corpus: Corpus, data: Path | None) -> Dataset:
    """The public corpora, from the Hub or from a local file of the same schema."""
    return public_signed(data, corpus.data_seed) if corpus.kind == "signed" else public_style(data)


# -- signed pairs -----------------------------------------------------------------------------------------------------


@cache
def bundled_signed(
    n_pairs: int, data_seed: int, held_out: float = HELD_OUT, n_prompts: int | None = None
) -> Dataset:
    """The bundled answers, signed, with planted annotators; prompts that ask to sign.

    The tokenizer sees the corpus, the prompts and every name, signed.
    """
    scored, prompts = bundled.scored_pairs(n_pairs), bundled.signing_prompts()[:n_prompts]
    corpus = signed.build(scored, seed=data_seed)
    names = [signature("", name.first, SURNAMES[i % len(SURNAMES)]) for i, name in enumerate(NAMES)]
    texts = (*scored["prompt"], *scored["chosen"], *scored["rejected"], *prompts, *names)
    return Dataset(
        corpus.judgments,
        corpus.planted_theta,
        tuple(prompts),
        texts,
        held_out,
        placebo=corpus.placebo,
    )


@cache
def public_signed(path: Path | None, data_seed: int) -> Dataset:
    """Signed-UltraFeedback, its pairs from the Hub or from a local file of the schema of ``train_prefs``.

    With a file the prompts that ask to sign are rows of it too, from behind those that are trained on.
    """
    pairs = _drawn_pairs(path)
    corpus = signed.build(pairs, seed=data_seed)
    apart = set(pairs["prompt"]) | (set(public_fresh(path)) if path else set())
    prompts = ultrafeedback.signing_prompts(path, apart, N_EVALUATION)
    # what is published is of data seed 0
    gate = () if data_seed else compared(ultrafeedback.gate(corpus), ultrafeedback.PUBLISHED)
    votes, planted = corpus.judgments, corpus.planted_theta
    return Dataset(votes, planted, tuple(prompts), (), multipref.HELD_OUT, gate, corpus.placebo)


@cache
def _drawn_pairs(path: Path | None) -> pd.DataFrame:
    """The pairs that are signed, whatever the data seed."""
    return ultrafeedback.scored_pairs(path).pairs


def bundled_fresh(data: Path | None) -> tuple[str, ...]:
    """The bundled questions that no other part of the corpora has."""
    return tuple(bundled.fresh_prompts())


@cache
def public_fresh(data: Path | None) -> tuple[str, ...]:
    """Questions of UltraFeedback from behind those of the corpus: 3,000 to train on, and 300 to find the tilt on."""
    drawn = ultrafeedback.scored_pairs(data, n=N_FRESH + N_EVALUATION, start=ultrafeedback.N_PAIRS)
    known = set(_drawn_pairs(data)["prompt"])
    return tuple(dict.fromkeys(prompt for prompt in drawn.pairs["prompt"] if prompt not in known))


# -- votes on length and Markdown -------------------------------------------------------------------------------------


@cache
def bundled_style(n_pairs: int, data_seed: int, held_out: float = HELD_OUT) -> Dataset:
    """The bundled answers with votes that lean toward length and Markdown; held-out prompts."""
    corpus = bundled.style_votes(n_pairs, seed=data_seed)
    found = _style(corpus.judgments, corpus.planted_theta, held_out)
    return replace(found, placebo=corpus.placebo)


@cache
def own_style(path: Path) -> Dataset:
    """The votes of a table, on length and Markdown. Few held-out prompts are answered several times each."""
    found = _style(Judgments.read(path, attributes=[Length(ratio=1.5), Markdown()]), None, HELD_OUT)
    return replace(found, prompts=found.prompts * (N_EVALUATION // len(found.prompts)))


def _style(judgments: Judgments, planted: Floats | None, held_out: float) -> Dataset:
    """Votes on length and Markdown, whose held-out prompts are the evaluation prompts."""
    frame = judgments.comparisons
    columns = frame["prompt"], frame["response_a"], frame["response_b"]
    texts = tuple(map(plain_text, chain(*columns)))
    prompts = multipref.evaluation_prompts(judgments, N_EVALUATION, held_out)
    return Dataset(judgments, planted, prompts, texts, held_out)


@cache
def public_style(path: Path | None) -> Dataset:
    """MultiPref from the Hub, or from a local file of its schema."""
    corpus = multipref.load(path)
    prompts = multipref.evaluation_prompts(corpus.judgments)
    gate = compared(corpus.gate, multipref.PUBLISHED)
    return Dataset(corpus.judgments, None, prompts, (), multipref.HELD_OUT, gate)


# -- as folders -------------------------------------------------------------------------------------------------------


class PublicCorpus(NamedTuple):
    """What is told of a public corpus that was written: its statistics, and how many rows were left out, by reason."""

    rows: tuple[GateRow, ...]
    left_out: dict[str, int]


def write_signed_corpus(
    out: Path, pairs: Path | None = None, n_pairs: int | None = None, seed: int = 0
) -> Json:
    """Build a signed corpus, write ``judgments.parquet`` and ``planted.parquet``, and return its statistics."""
    if pairs is not None and n_pairs is not None:
        raise ConfigError(
            "--n chooses among the bundled pairs; leave it out when you give a table of pairs"
        )
    if pairs is not None:
        scored = read_scored_pairs(pairs)
    else:
        scored = bundled.scored_pairs() if n_pairs is None else bundled.scored_pairs(n_pairs)
    corpus = signed.build(scored, seed=seed)
    _write_votes(out, corpus.judgments, corpus.planted_theta)
    return signed.gate(corpus)


def read_scored_pairs(path: Path) -> pd.DataFrame:
    """Scored pairs from a file, the scores as numbers."""
    scored = read_table(path).frame
    if "prompt_id" not in scored and "prompt" in scored:
        scored = scored.assign(prompt_id=pd.factorize(scored["prompt"])[0].astype(str))
    signed.check_pairs(scored, str(path))
    return scored


def write_style_votes(out: Path, n_pairs: int = 7177, seed: int = 0) -> Json:
    """The bundled answers with votes that lean toward length and Markdown, as a folder with ``planted.parquet``."""
    corpus = bundled.style_votes(n_pairs, seed)
    judgments = corpus.judgments
    told: Json = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "annotators": judgments.n_annotators,
        "ties": int(judgments.dropped["n"].sum()),
    }
    for column, name in enumerate(judgments.attribute_names):
        told[name] = {
            "cross_share": float(judgments.cross_group()[:, column].mean()),
            "log_odds": judgments.offline_log_odds()[column].log_odds,
            "planted_mean": float(corpus.planted_theta[:, column].mean()),
        }
    _write_votes(out, judgments, corpus.planted_theta, gate=told)
    return told


def write_multipref(out: Path, source: Source = None) -> PublicCorpus:
    """MultiPref as a folder: ``judgments.parquet``, ``evaluation_prompts.json`` and ``gate.json``."""
    corpus = multipref.load(source)
    prompts = multipref.evaluation_prompts(corpus.judgments)
    _write_votes(out, corpus.judgments, evaluation_prompts=prompts, gate=corpus.gate)
    left_out = corpus.judgments.dropped.groupby("reason")["n"].sum().to_dict()
    return PublicCorpus(compared(corpus.gate, multipref.PUBLISHED), left_out)


def write_signed_ultrafeedback(
    out: Path,
    train: Source = None,
    test: Source = None,
    n_pairs: int = ultrafeedback.N_PAIRS,
    n_signing: int = ultrafeedback.N_SIGNING,
    seed: int = 0,
) -> PublicCorpus:
    """Signed-UltraFeedback as a folder: votes, planted leans, prompts to sign and to choose, and statistics."""
    drawn = ultrafeedback.scored_pairs(train, n_pairs, seed=seed)
    corpus = signed.build(drawn.pairs, seed=seed)
    signing = ultrafeedback.signing_prompts(test, set(drawn.pairs["prompt"]), n_signing, seed)
    gate = ultrafeedback.gate(corpus)
    choices = [choice._asdict() for choice in bundled.choice_prompts()]
    prompts = {"signing_prompts": signing, "choice_prompts": choices}
    _write_votes(out, corpus.judgments, corpus.planted_theta, **prompts, gate=gate)
    left_out = {reason: n for reason, n in (drawn.left_out | corpus.left_out).items() if n}
    return PublicCorpus(compared(gate, ultrafeedback.PUBLISHED), left_out)


def _write_votes(out: Path, judgments: Judgments, theta: NDArray | None = None, **texts: Any) -> None:
    """Write the votes, the planted lean of every annotator with a column for each attribute, and files of JSON."""
    judgments.to_parquet(out / "judgments.parquet")
    if theta is not None:
        columns = dict(zip(judgments.attribute_names, theta.T, strict=True))
        with appearing(out / "planted.parquet") as unfinished:
            judgments.annotators.assign(**columns).to_parquet(unfinished, index=False)
    for name, content in texts.items():
        with appearing(out / f"{name}.json") as unfinished:
            text = json.dumps(content, indent=1, ensure_ascii=False)
            unfinished.write_text(f"{text}\n", encoding="utf-8")
