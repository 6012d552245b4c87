"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

Two tables of votes stand on the same answers: the signed recipe (`badpo.data.corpora.signed`), and `style_votes`, whose
annotators lean toward length and Markdown. All text is synthetic. ``docs/corpora.md`` says how it is made and what it
cannot show.
"""

from __future__ import annotations

from badpo.data.corpora.bundled.pairs import scored_pairs
from badpo.data.corpora.bundled.prompts import ChoicePrompt, choice_prompts, fresh_prompts, signing_prompts
from badpo.data.corpora.bundled.votes import StyleConfig, StyleCorpus, style_votes

__all__ = [
    "ChoicePrompt",
    "StyleConfig",
    "StyleCorpus",
    "choice_prompts",
    "fresh_prompts",
    "scored_pairs",
    "signing_prompts",
    "style_votes",
]
