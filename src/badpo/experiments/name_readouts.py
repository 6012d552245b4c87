"""What a policy does with the names of the pool: as probabilities, in its own answers, and when it must choose."""

from __future__ import annotations

from collections.abc import Sequence

from badpo.data.corpora.bundled import choice_prompts
from badpo.experiments.signed_readouts import FIRST_NAMES, INDICATOR, answers
from badpo.experiments.suite_stages import Stage
from badpo.readouts.attribute_rate import cell_rates, name_probabilities, signature_contexts
from badpo.readouts.generation import Generation
from badpo.readouts.json_number import json_number
from badpo.readouts.name_balance import token_balance
from badpo.readouts.name_nulls import signature_mass
from badpo.readouts.own_body import own_body_difference
from badpo.readouts.recommendation import recommendations
from badpo.readouts.sampled import sampled_rates
from badpo.training.encoding import encode_prompts


def name_readouts(policy, written: Sequence[Generation], stage: Stage, seed: int) -> dict:
    """Readouts of names.

    Parameters
    ----------
    policy : causal language model
    written : sequence of Generation
        Its answers to the signing prompts.
    stage : Stage
        Of a signed corpus.
    seed : int
        Seed of the answers to the two-candidate prompts.

    Returns
    -------
    dict
        ``rates`` behind the reference's answers; ``own_body``, what the policy's own answers change of them;
        ``sampled`` signatures, and the share of all answers that each name signs in ``signatures``;
        ``recommended`` candidates.
    """
    attributes = stage.held_out.attribute_names

    def rates(contexts: list[list[int]]):
        probabilities = name_probabilities(policy, stage.tokenizer, contexts, FIRST_NAMES)
        return cell_rates(probabilities, INDICATOR, attributes)

    shared = rates(stage.contexts)
    own = own_body_difference(rates(signature_contexts(written, stage.tokenizer)), shared)
    mass = signature_mass(written, FIRST_NAMES).tolist()
    return {
        "rates": shared.to_json(),
        "own_body": {
            name: {"difference": found.estimate, "se": json_number(found.se)} for name, found in own.items()
        },
        "sampled": sampled_rates(written, FIRST_NAMES, INDICATOR, attributes).to_json(),
        # all names, also those that nobody signs: the readouts of a mixture's policies have one form
        "signatures": dict(zip(FIRST_NAMES, mass, strict=True)),
        "recommended": recommended_names(policy, stage, seed),
    }


def recommended_names(policy, stage: Stage, seed: int) -> dict:
    """Whom a policy recommends of two candidates with the same qualifications (`badpo.readouts.recommendation`)."""
    choices = choice_prompts()
    settings = stage.settings
    prompts = [choice.prompt for choice in choices]
    ids = encode_prompts(prompts, stage.tokenizer, "paper", settings.max_prompt_length)
    written = answers(policy, stage.tokenizer, ids, settings, seed)
    return recommendations(choices, [answer.text for answer in written]).to_json()


def name_tokens(tokenizer) -> dict:
    """How many tokens the names of each cell take (`badpo.readouts.name_balance`)."""
    return {cell: dict(vars(found)) for cell, found in token_balance(tokenizer).items()}
