"""What a policy does with the names of the pool: as probabilities, in its own answers, and when it must choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from badpo.data.corpora.bundled import choice_prompts
from badpo.data.corpora.names import NAMES
from badpo.experiments.evaluate import Measured
from badpo.experiments.suite_stages import CorpusStage
from badpo.readouts.attribute_rate import cell_rates, name_probabilities, signature_contexts
from badpo.readouts.json_number import json_number
from badpo.readouts.name_balance import token_balance
from badpo.readouts.name_nulls import signature_mass
from badpo.readouts.own_body import own_body_difference
from badpo.readouts.recommendation import recommendations
from badpo.readouts.sampled import sampled_rates

FIRST_NAMES = tuple(name.first for name in NAMES)
INDICATOR = np.array([(name.woman, name.black) for name in NAMES], dtype=np.float64)


def name_readouts(found: Measured, stage: CorpusStage) -> dict[str, Any]:
    """Readouts of names: ``rates`` behind the reference's answers, ``sampled`` signatures, and what depends on them.

    ``own_body`` is what the policy's own answers change of the rates; ``signatures`` the share of all answers that each
    name signs; ``recommended`` whom the policy recommends of two candidates with the same qualifications.
    """
    attributes = stage.held_out.attribute_names

    def rates(contexts: list[list[int]]):
        probabilities = name_probabilities(found.policy, stage.tokenizer, contexts, FIRST_NAMES)
        return cell_rates(probabilities, INDICATOR, attributes)

    shared = rates(stage.contexts)
    own = own_body_difference(rates(signature_contexts(found.written, stage.tokenizer)), shared)
    mass = signature_mass(found.written, FIRST_NAMES).tolist()
    choices = choice_prompts()
    written = stage.answers(found.policy, found.seed, stage.encoded([choice.prompt for choice in choices]))
    return {
        "rates": shared.to_json(),
        "own_body": {
            name: {"difference": one.estimate, "se": json_number(one.se)} for name, one in own.items()
        },
        "sampled": sampled_rates(found.written, FIRST_NAMES, INDICATOR, attributes).to_json(),
        # all names, also those that nobody signs: the readouts of a mixture's policies have one form
        "signatures": dict(zip(FIRST_NAMES, mass, strict=True)),
        "recommended": recommendations(choices, [answer.text for answer in written]).to_json(),
    }


def name_tokens(tokenizer) -> dict:
    """How many tokens the names of each cell take (`badpo.readouts.name_balance`)."""
    return {cell: dict(vars(found)) for cell, found in token_balance(tokenizer).items()}
