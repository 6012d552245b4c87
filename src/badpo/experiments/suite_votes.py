"""What the votes of a corpus say before anything is trained, and what of their texts a scale can train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from badpo.auditing.pool import log_odds_row
from badpo.data.judgments import Judgments
from badpo.experiments.suite_parts import Corpus, Panel
from badpo.experiments.suite_settings import Scale
from badpo.experiments.suite_tables import Cell, Table, TableRow, cell_of, paper_numbers
from badpo.training.encoding import encode_comparisons, length_report

MOST = 0.5
FEW_PROMPTS = 30
_NO_PROMPT_LIMIT = 2**31


def votes_table(panel: Panel, judgments: Judgments) -> Table:
    """How every declared attribute stands in the votes, the paper's numbers beside.

    Parameters
    ----------
    panel : Panel
        Its columns are keys of `badpo.auditing.pool.log_odds_row`.
    judgments : Judgments
        All of them: those to train on and those held out.

    References
    ----------
    BA-DPO, Table `tab:attributes`.
    """
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    rows = []
    for name, found in zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True):
        read, theirs = log_odds_row(found, judgments.n_votes), paper.get(name, {})
        cells = tuple(_cell(read, column.source, theirs.get(column.label)) for column in panel.columns)
        rows.append(TableRow(name, (), False, cells))
    return Table(panel, panel.columns, tuple(rows), ())


def _cell(read: Mapping[str, Any], source: str, paper: list | None) -> Cell:
    value, low, high = read[source], read["ci_low"], read["ci_high"]
    cell = cell_of([] if value is None else [float(value)], "prompts95", paper)
    has_interval = source == "log_odds" and low is not None and high is not None
    return replace(cell, half=(high - low) / 2) if has_interval else cell


@cache
def about_votes(corpus: Corpus, scale: Scale, data: Path) -> tuple[str, ...]:
    """A user's own votes in sentences: how many they are, and what the scale's limits leave of their texts.

    Nothing is trained and no model is loaded. Where the tokenizer is not learned from the votes, nothing is said of
    tokens.

    Parameters
    ----------
    corpus : Corpus
    scale : Scale
    data : Path

    Raises
    ------
    DataError
        The votes cannot be used.
    """
    material = scale.material(corpus, data).require_unseen()
    judgments = material.judgments
    train, held_out = material.split()
    left_out = judgments.dropped.groupby("reason")["n"].sum()
    reasons = "".join(f"; {n:,} rows left out ({reason})" for reason, n in left_out.items())
    n_prompts, n_asked = judgments.comparisons["prompt_id"].nunique(), len(set(material.prompts))
    lines = [
        f"votes: {judgments.n_votes:,} judgments of {judgments.n_annotators:,} annotators on "
        f"{judgments.n_comparisons:,} comparisons of {n_prompts:,} prompts{reasons}; "
        f"{train.n_votes:,} to train on, {held_out.n_votes:,} held out; {n_asked:,} evaluation prompts, "
        f"{len(material.prompts) // n_asked:,} times each"
    ]
    if n_asked < FEW_PROMPTS:
        lines.append(f"{n_asked} evaluation prompts are few: what is read from sampled answers is rough")
    if scale.made is not None:
        keys, n_sampled = scale.keys(corpus, material), scale.decoding.max_new_tokens
        limits = (keys["max_length"], keys["max_prompt_length"], n_sampled)
        lines += _about_texts(judgments, scale.made(corpus, material)[1], *limits)
    return tuple(lines)


def _about_texts(judgments: Judgments, tokenizer, limit: int, prompt_limit: int, n_sampled: int) -> list[str]:
    """What the limits in tokens leave of prompts and responses, and of the attributes."""
    whole = encode_comparisons(judgments, tokenizer, "paper", None, _NO_PROMPT_LIMIT)
    prompts = np.array([len(ids) for ids in whole.prompt_ids])
    responses = np.array([[len(a), len(b)] for a, b in zip(whole.a_ids, whole.b_ids, strict=True)])
    room = (limit - np.minimum(prompts, prompt_limit))[:, None]
    longer = responses > n_sampled
    consequence = (
        ": the length of sampled answers then says little, and the held-out gap is what to read"
        if longer.mean() > MOST
        else ""
    )
    lines = [
        f"texts: prompt and response together are cut to {limit} tokens at this scale, the prompt to {prompt_limit}: "
        f"{_share(prompts > prompt_limit)} of prompts lose their beginning, {_share(responses > room)} of responses "
        f"their end; the median response has {np.median(responses):.0f} tokens",
        f"answers are sampled up to {n_sampled} tokens, and {_share(longer)} of responses are longer"
        f"{consequence}",
    ]
    encoded = encode_comparisons(judgments, tokenizer, "paper", limit, prompt_limit)
    found = length_report(judgments, encoded, tokenizer, limit)
    lines += [f"{problem.what} ({problem.where})" for problem in found]
    both = (responses > room).all(axis=1)[judgments.votes["comparison"].to_numpy()]
    for place, attribute in enumerate(judgments.attributes):
        cross = judgments.cross_group()[:, place]
        if attribute.scope == "pair" and cross.any():
            lines.append(
                f'attribute "{attribute.name}" is measured on whole texts; in {_share(both[cross])} of the judgments '
                "whose sides differ in it both responses are cut, so that policies see two sides equally long"
            )
    return lines


def _share(mask: np.ndarray) -> str:
    return f"{100 * float(np.mean(mask)):.0f} %"
