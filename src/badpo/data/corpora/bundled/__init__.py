"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

All text is synthetic. ``docs/corpora.md`` says how it is made and what it cannot show.
"""

from __future__ import annotations

from badpo.data.corpora.bundled.pairs import scored_pairs
from badpo.data.corpora.bundled.prompts import ChoicePrompt, choice_prompts, fresh_prompts, signing_prompts

__all__ = ["ChoicePrompt", "choice_prompts", "fresh_prompts", "scored_pairs", "signing_prompts"]
