"""Make or load the votes and prompts of the bundled and public corpora. This module needs no model."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from badpo.auditing.pool_bias import log_odds_row
from badpo.data.attributes import Length, Markdown, plain_text
from badpo.data.files import Json, appearing
from badpo.data.judgments import Judgments
from badpo.readouts.names import NAMES, SURNAMES, signature
from badpo.results.formatting import lean_text, percent
from badpo.theory import Floats
from badpo_paper.corpora import bundled, public, signed
from badpo_paper.corpora.public import (
    N_EVALUATION,
    PublishedStatistic,
    Source,
    compare_statistics,
    format_statistics,
)
from badpo_paper.corpora.signed import Statistics
from badpo_paper.suites import Corpus

N_PAIRS, N_STYLE_PAIRS = 9000, 7177
N_DEMO_PAIRS, N_DEMO_PROMPTS = 4450, 150
N_FRESH = 3000
HELD_OUT = 0.25  # share of the prompts of the bundled corpora


@dataclass(frozen=True)
class Dataset:
    """Votes and prompts of a corpus.

    ``prompts`` are the evaluation prompts; if a prompt is repeated, a policy answers it several times. ``texts`` are
    for training a small tokenizer. ``placebo`` contains the votes that the simulated annotators would cast without
    biases; it is None if people cast the votes. ``held_out`` is the share of held-out prompts, which also determines
    the evaluation prompts. ``statistics`` compares the statistics of a public corpus with the published statistics.
    """

    judgments: Judgments
    planted: Floats | None
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    held_out: float
    statistics: tuple[PublishedStatistic, ...] = ()
    placebo: Judgments | None = None

    def split(self) -> tuple[Judgments, Judgments]:
        """Training judgments and held-out judgments."""
        return self.judgments.split(self.held_out, seed=0)

    def split_placebo(self) -> Judgments:
        """Return the training judgments of the placebo; their prompts are the training prompts of `split`."""
        assert self.placebo is not None, "only simulated votes have a placebo"
        return self.placebo.split(self.held_out, seed=0)[0]


def measure_votes(judgments: Judgments) -> dict[str, Json]:
    """Measure the log-odds and the shares of every declared attribute in the votes."""
    log_odds = zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True)
    return {name: dict(log_odds_row(pooled, judgments.n_votes)) for name, pooled in log_odds}


def describe_statistics(datasets: Iterable[Dataset]) -> list[str]:
    """Compare the statistics of public corpora with the published statistics; list identical tables only once."""
    tables = dict.fromkeys(dataset.statistics for dataset in datasets if dataset.statistics)
    title = "statistics of the votes before training:"
    return [line for table in tables for line in (title, *format_statistics(table))]


def describe_bias(judgments: Judgments) -> list[str]:
    """Describe the bias in the votes: for each attribute, the log-odds that the pool chooses the response with it."""
    lines = [
        f"{judgments.n_votes:,} votes of {judgments.n_annotators:,} annotators on "
        f"{judgments.n_comparisons:,} comparisons; bias of the votes before training:"
    ]
    for name, log_odds in zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True):
        row = log_odds_row(log_odds, judgments.n_votes)
        wins = f"chosen in {percent(row['win_rate'])} of the {row['n_cross']:,} votes"
        lines.append(
            f"  toward {name}: {wins} in which only one response has it, log-odds {lean_text(row)}"
        )
    return lines


# -- corpora of a scale -----------------------------------------------------------------------------------------------


def make_bundled_dataset(corpus: Corpus, data: Path | None = None) -> Dataset:
    """Make a dataset of bundled answers; a style corpus may use the votes in ``data`` instead of simulated votes."""
    if corpus.kind == "signed":
        return make_signed_dataset(N_PAIRS, corpus.data_seed)
    return (
        make_style_dataset(N_STYLE_PAIRS, corpus.data_seed) if data is None else read_style_dataset(data)
    )


def make_demo_dataset(corpus: Corpus, data: Path | None = None) -> Dataset:
    """Make the dataset of the demo: bundled answers that are signed with names."""
    return make_signed_dataset(N_DEMO_PAIRS, corpus.data_seed, n_prompts=N_DEMO_PROMPTS)


def load_public_dataset(corpus: Corpus, data: Path | None) -> Dataset:
    """Load the dataset of a public corpus from the Hub or from a local file with the same schema."""
    return (
        load_signed_dataset(data, corpus.data_seed)
        if corpus.kind == "signed"
        else load_style_dataset(data)
    )


# -- signed pairs -----------------------------------------------------------------------------------------------------


@cache
def make_signed_dataset(
    n_pairs: int, data_seed: int, held_out: float = HELD_OUT, n_prompts: int | None = None
) -> Dataset:
    """Make a dataset of signed bundled answers with simulated votes, and prompts that ask for a signature.

    The tokenizer is trained on the texts of the corpus, the prompts and a signature with every name.
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
def load_signed_dataset(path: Path | None, data_seed: int) -> Dataset:
    """Load Signed-UltraFeedback; the pairs are from the Hub or from a local file with the schema of ``train_prefs``.

    If a file is given, the evaluation prompts are from rows of this file that are not used for training.
    """
    pairs = public.draw_ultrafeedback(path).pairs
    corpus = signed.build(pairs, seed=data_seed)
    used = set(pairs["prompt"]) | (set(load_fresh_prompts(path)) if path else set())
    prompts = public.signing_prompts(path, used, N_EVALUATION)
    # the published statistics describe data seed 0, so no other corpus is compared with them
    measured, published = public.measure_ultrafeedback(corpus), public.PUBLISHED_ULTRAFEEDBACK
    return Dataset(
        corpus.judgments,
        corpus.planted_theta,
        tuple(prompts),
        (),
        public.HELD_OUT,
        () if data_seed else compare_statistics(measured, published),
        corpus.placebo,
    )


def make_fresh_prompts(data: Path | None) -> tuple[str, ...]:
    """Return bundled questions that occur neither in the scored pairs nor among the evaluation prompts."""
    return tuple(bundled.fresh_prompts())


@cache
def load_fresh_prompts(data: Path | None) -> tuple[str, ...]:
    """Return UltraFeedback questions that follow the corpus's rows: 3,000 for training, 300 for estimating the tilt."""
    drawn = public.draw_ultrafeedback(data, n=N_FRESH + N_EVALUATION, start=public.N_PAIRS)
    used = set(public.draw_ultrafeedback(data).pairs["prompt"])
    return tuple(dict.fromkeys(prompt for prompt in drawn.pairs["prompt"] if prompt not in used))


# -- votes on length and Markdown -------------------------------------------------------------------------------------


@cache
def make_style_dataset(n_pairs: int, data_seed: int, held_out: float = HELD_OUT) -> Dataset:
    """Make a dataset of bundled answers with simulated votes that are biased toward length and Markdown."""
    corpus = bundled.style_votes(n_pairs, seed=data_seed)
    dataset = _make_dataset(corpus.judgments, corpus.planted_theta, held_out)
    return replace(dataset, placebo=corpus.placebo)


@cache
def read_style_dataset(path: Path) -> Dataset:
    """Read a table of votes, and declare length and Markdown. If there are few held-out prompts, they are repeated."""
    judgments = Judgments.read(path, attributes=[Length(ratio=1.5), Markdown()])
    dataset = _make_dataset(judgments, None, HELD_OUT)
    return replace(dataset, prompts=dataset.prompts * (N_EVALUATION // len(dataset.prompts)))


def _make_dataset(judgments: Judgments, planted: Floats | None, held_out: float) -> Dataset:
    """Make a dataset of votes with the attributes length and Markdown; it is evaluated on held-out prompts."""
    frame = judgments.comparisons
    columns = frame["prompt"], frame["response_a"], frame["response_b"]
    texts = tuple(map(plain_text, chain(*columns)))
    prompts = public.choose_evaluation_prompts(judgments, N_EVALUATION, held_out)
    return Dataset(judgments, planted, prompts, texts, held_out)


@cache
def load_style_dataset(path: Path | None) -> Dataset:
    """Load the MultiPref dataset from the Hub or from a local file with the same schema."""
    corpus = public.load_multipref(path)
    prompts = public.choose_evaluation_prompts(corpus.judgments)
    statistics = compare_statistics(corpus.statistics, public.STATISTICS["multipref"])
    return Dataset(corpus.judgments, None, prompts, (), public.HELD_OUT, statistics)


# -- writing corpora to folders ---------------------------------------------------------------------------------------


class PublicCorpus(NamedTuple):
    """Statistics of a public corpus that was written to a folder, and the number of excluded rows by reason."""

    rows: tuple[PublishedStatistic, ...]
    left_out: dict[str, int]


def write_signed_corpus(out: Path, n_pairs: int, seed: int) -> Statistics:
    """Build a signed corpus, write ``judgments.parquet`` and ``planted.parquet``, and return the corpus statistics."""
    corpus = signed.build(bundled.scored_pairs(n_pairs), seed=seed)
    _write_votes(out, corpus.judgments, corpus.planted_theta)
    return signed.measure_corpus(corpus)


def write_style_votes(out: Path, n_pairs: int, seed: int) -> Statistics:
    """Write simulated votes that are biased toward length and Markdown, with the planted biases; return statistics."""
    corpus = bundled.style_votes(n_pairs, seed)
    judgments = corpus.judgments
    by_attribute: Statistics = {
        name: {
            "cross_share": float(judgments.cross_group()[:, column].mean()),
            "log_odds": judgments.offline_log_odds()[column].log_odds,
            "planted_mean": float(corpus.planted_theta[:, column].mean()),
        }
        for column, name in enumerate(judgments.attribute_names)
    }
    statistics: Statistics = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "annotators": judgments.n_annotators,
        "ties": int(judgments.dropped["n"].sum()),
        **by_attribute,
    }
    _write_votes(out, judgments, corpus.planted_theta, statistics=statistics)
    return statistics


def write_multipref(out: Path, source: Source = None) -> PublicCorpus:
    """Write MultiPref to a folder: ``judgments.parquet``, ``evaluation_prompts.json`` and ``statistics.json``."""
    corpus = public.load_multipref(source)
    prompts = public.choose_evaluation_prompts(corpus.judgments)
    _write_votes(out, corpus.judgments, evaluation_prompts=prompts, statistics=corpus.statistics)
    left_out = corpus.judgments.dropped.groupby("reason")["n"].sum().to_dict()
    return PublicCorpus(compare_statistics(corpus.statistics, public.STATISTICS["multipref"]), left_out)


def write_signed_ultrafeedback(
    out: Path,
    train: Source = None,
    test: Source = None,
    n_pairs: int = public.N_PAIRS,
    n_signing: int = public.N_SIGNING,
    seed: int = 0,
) -> PublicCorpus:
    """Write Signed-UltraFeedback to a folder: votes, planted biases, two sets of prompts, and statistics."""
    drawn = public.draw_ultrafeedback(train, n_pairs, seed=seed)
    corpus = signed.build(drawn.pairs, seed=seed)
    signing = public.signing_prompts(test, set(drawn.pairs["prompt"]), n_signing, seed)
    statistics = public.measure_ultrafeedback(corpus)
    choices = [choice._asdict() for choice in bundled.choice_prompts()]
    _write_votes(
        out,
        corpus.judgments,
        corpus.planted_theta,
        signing_prompts=signing,
        choice_prompts=choices,
        statistics=statistics,
    )
    left_out = {reason: n for reason, n in (drawn.left_out | corpus.left_out).items() if n}
    return PublicCorpus(compare_statistics(statistics, public.PUBLISHED_ULTRAFEEDBACK), left_out)


def _write_votes(
    out: Path, judgments: Judgments, theta: Floats | None = None, **contents: object
) -> None:
    """Write votes, planted biases (one row per annotator, one column per attribute), and JSON files to a folder."""
    judgments.to_parquet(out / "judgments.parquet")
    if theta is not None:
        columns = dict(zip(judgments.attribute_names, theta.T, strict=True))
        with appearing(out / "planted.parquet") as unfinished:
            judgments.annotators.assign(**columns).to_parquet(unfinished, index=False)
    for name, content in contents.items():
        with appearing(out / f"{name}.json") as unfinished:
            text = json.dumps(content, indent=1, ensure_ascii=False)
            unfinished.write_text(f"{text}\n", encoding="utf-8")
