"""What a policy trained on a signed corpus does: rates, samples, held-out votes, distance from the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from badpo.data.attributes import attribute_from_config
from badpo.data.corpora.names import NAMES
from badpo.data.corpora.signed_plan import SignedConfig
from badpo.data.files import resealed
from badpo.data.judgments import Judgments
from badpo.objective.bias import BiasTerm
from badpo.readouts.attribute_rate import cell_rates, name_probabilities, signature_contexts
from badpo.readouts.generation import Generation, sample
from badpo.readouts.generation_vllm import sample_saved, saved_folders
from badpo.readouts.heldout import heldout_accuracy
from badpo.readouts.policies import divergence, implicit_margins
from badpo.readouts.sampled import mean_tokens, sampled_rates
from badpo.readouts.theta import theta_agreement
from badpo.readouts.votes import vote_accuracy, vote_difference
from badpo.theory.summaries import log_odds_distance, share_removed
from badpo.training.model_files import load_weights
from badpo.training.reference import ReferenceCache, weights_key
from badpo.training.run_folder import write_json

FIRST_NAMES = tuple(name.first for name in NAMES)
INDICATOR = np.array([(name.woman, name.black) for name in NAMES], dtype=np.float64)
REFERENCE_SEED = 0


@dataclass(frozen=True)
class ReferenceStage:
    """What every arm and seed of a suite shares.

    Attributes
    ----------
    train, held_out : Judgments
    planted : array of shape (n_annotators, 2)
        Planted theta of every annotator, used to measure and never to train.
    config : SignedConfig
        The settings the votes were drawn with.
    tokenizer : PreTrainedTokenizerBase
    model : PreTrainedModel
        The reference policy.
    folder : Path
        ``folder/model`` is the reference; ``folder/cache`` its log-probabilities.
    prompt_ids : list of int arrays
        Signing prompts as the policy reads them.
    contexts : list of lists of int
        The reference's own answers up to the place where the first name would stand.
    """

    train: Judgments
    held_out: Judgments
    planted: np.ndarray
    config: SignedConfig
    tokenizer: Any
    model: Any
    folder: Path
    prompt_ids: list[np.ndarray]
    contexts: list[list[int]]

    @property
    def cache_folder(self) -> Path:
        """Where the reference's log-probabilities are kept."""
        return self.folder / "cache"

    @cached_property
    def key(self) -> str:
        """The key of the reference's weights."""
        return weights_key(self.model, "fp32")

    def cache(self) -> ReferenceCache:
        """The reference's log-probabilities."""
        return ReferenceCache(self.cache_folder, self.key)


def reference_contexts(model, tokenizer, prompt_ids, settings) -> list[list[int]]:
    """The reference's sampled answers to the signing prompts, signatures stripped, up to the first name."""
    return signature_contexts(answers(model, tokenizer, prompt_ids, settings, REFERENCE_SEED), tokenizer)


def answers(model, tokenizer, prompt_ids, settings, seed: int) -> list[Generation]:
    """One sampled answer to each prompt, by what the settings say: transformers, or vLLM on the files of the model."""
    how = {"temperature": settings.temperature, "top_p": settings.top_p, "seed": seed}
    if settings.generate_with == "vllm":
        folder, adapter = saved_folders(model)
        return sample_saved(folder, prompt_ids, settings.max_new_tokens, adapter=adapter, **how)
    return sample(model, tokenizer, prompt_ids, settings.max_new_tokens, **how)


def measure(
    folder: Path, stage: ReferenceStage, settings, seed: int, bias: BiasTerm | None, progress
) -> dict:
    """Every readout of the policy in ``folder/model``, written to ``folder/readouts.json``.

    Parameters
    ----------
    folder : Path
        A run folder; the reference's own for the reference.
    stage : ReferenceStage
    settings : SuiteSettings
    seed : int
        Seed of the sampled answers.
    bias : BiasTerm or None
        The arm's own theta; None for the reference.
    progress : function

    Returns
    -------
    dict
        The content of ``readouts.json``.
    """
    name = folder.name.rsplit("-s", 1)[0]
    progress(f"{folder.name} readouts", 0.0)
    policy = load_weights(folder / "model").to(stage.model.device)
    written = answers(policy, stage.tokenizer, stage.prompt_ids, settings, seed)
    progress(f"{folder.name} readouts", 0.5)
    attributes = stage.held_out.attribute_names
    probabilities = name_probabilities(policy, stage.tokenizer, stage.contexts, FIRST_NAMES)
    readouts = {
        "arm": name,
        "seed": seed,
        "rates": cell_rates(probabilities, INDICATOR, attributes).to_json(),
        "sampled": sampled_rates(written, FIRST_NAMES, INDICATOR, attributes).to_json(),
        "tokens": mean_tokens(written).to_json(),
    }
    if bias is not None:
        readouts |= held_out_readouts(policy, written, stage, settings, seed, bias)
    with resealed(folder, ["planted.json", "readouts.json"]):
        if bias is not None:
            write_json(folder / "planted.json", planted(stage))
        write_json(folder / "readouts.json", readouts)
    progress(f"{folder.name} readouts", 1.0)
    return readouts


def held_out_readouts(policy, written: list[Generation], stage, settings, seed: int, bias: BiasTerm) -> dict:
    """What a trained policy and its theta say of held-out votes, and how far the policy is from the reference.

    Parameters
    ----------
    policy : causal language model
    written : list of Generation
        Its sampled answers. The published estimate of the divergence is of these (``kl_published``); ``kl`` is of
        others, drawn from the policy as it is: at temperature 1, with no token left out.
    stage : ReferenceStage, or what has its ``held_out``, ``planted``, ``tokenizer``, ``model`` and ``cache``
        Where nothing was planted there is no ceiling and no agreement.
    settings : SuiteSettings
    seed : int
        Seed of the answers that are drawn.
    bias : BiasTerm
    """
    judged = with_own_attributes(stage.held_out, bias)
    theta = theta_rows(bias, judged)
    margins = implicit_margins(
        policy,
        stage.model,
        stage.cache(),
        stage.held_out,
        stage.tokenizer,
        "paper",
        settings.max_length,
        settings.max_prompt_length,
        settings.beta,
    )
    attributes = judged.attribute_names
    own = replace(settings, temperature=1.0, top_p=1.0)
    drawn = answers(policy, stage.tokenizer, stage.prompt_ids, own, seed)
    found = {
        "heldout": heldout_accuracy(margins, stage.held_out).to_json(),
        "votes": vote_accuracy(margins, theta, judged).to_json(),
        "kl": divergence(policy, stage.model, drawn, own.temperature, own.top_p).to_json(),
        "kl_published": divergence(
            policy, stage.model, written, settings.temperature, settings.top_p
        ).to_json(),
        "theta": {name: {"level": round(float(theta[:, i].mean()), 2)} for i, name in enumerate(attributes)},
    }
    if stage.planted is None:
        return found
    classes = stage.held_out.annotators["annotator_class"].tolist()
    # nothing was planted on an attribute of the arm's own
    truth = np.pad(stage.planted, ((0, 0), (0, theta.shape[1] - stage.planted.shape[1])))
    agreement = theta_agreement(theta, truth, attributes, classes)
    return found | {
        "ceiling": vote_accuracy(margins, truth, judged).to_json(),
        "votes_minus_ceiling": vote_difference(margins, theta, truth, judged).to_json(),
        "theta": {name: found.to_json() for name, found in agreement.items()},
    }


def with_own_attributes(judgments: Judgments, bias: BiasTerm) -> Judgments:
    """The judgments with those attributes besides theirs that an arm declared for itself and learned theta on.

    Votes are predicted with theta on what it was learned on. A penalty is fixed and says nothing of annotators: the
    length that it is on is left out.
    """
    places = [i for i, name in enumerate(bias.attributes) if name not in judgments.attribute_names]
    if not places or not bias.parts:
        return judgments
    own = judgments.with_attributes([attribute_from_config(bias.extra["attributes"][i]) for i in places])
    return replace(
        judgments,
        attributes=(*judgments.attributes, *own.attributes),
        delta=np.hstack([judgments.delta, own.delta]),
    )


def theta_rows(bias: BiasTerm, judgments: Judgments) -> np.ndarray:
    """Theta of every annotator on every attribute of ``judgments``, in log-odds.

    0 for an attribute that the arm did not declare. An attribute that the judgments do not have, such as the length
    that a penalty is on, has no column, and a theta that is not in log-odds is left out.
    """
    composed = bias.theta().detach().double().numpy()
    rows = np.zeros((judgments.n_annotators, judgments.n_attributes))
    for column, name in enumerate(bias.attributes):
        if name in judgments.attribute_names and bias.extra.get("theta_in_log_odds", True):
            rows[:, judgments.attribute_names.index(name)] = composed[:, column]
    return rows


def planted(stage) -> dict:
    """The planted theta per pseudonym, for the report's scatter."""
    annotators = stage.train.annotators
    rows = zip(annotators["pseudonym"], annotators["annotator_class"], stage.planted.tolist(), strict=True)
    return {
        "attributes": list(stage.train.attribute_names),
        "annotators": [{"pseudonym": p, "annotator_class": c, "theta": theta} for p, c, theta in rows],
    }


def summarize(readouts: Mapping[str, dict], seed: int, seconds: float) -> dict:
    """One seed's figures over all arms: what ``summary.json`` holds.

    Parameters
    ----------
    readouts : mapping of arm to its readouts
        With ``reference`` and ``dpo``.
    seed : int
    seconds : float
        Time that the seed's arms and readouts took.

    Returns
    -------
    dict
        ``removed`` is the share of DPO's shift that an arm takes away: 0 is DPO, 1 the reference.
        ``log_odds_distance`` is the arm's distance from the reference in log-odds, with its sign.
        ``theta_correlation`` is that of the arm with an own theta for each annotator.
    """
    arms = [name for name in readouts if name != "reference"]
    rates = {name: {a: found["rate"] for a, found in r["rates"].items()} for name, r in readouts.items()}
    attributes = list(rates["reference"])
    adjusted = [name for name in arms if name != "dpo"]
    identified = next(
        (n for n in arms if all(v["correlation"] is not None for v in readouts[n]["theta"].values())), None
    )
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "rates": rates,
        "removed": {
            name: {
                a: _finite(share_removed([rates["dpo"][a]], [rates[name][a]], rates["reference"][a])[0])
                for a in attributes
            }
            for name in adjusted
        },
        "log_odds_distance": {
            name: {a: _finite(log_odds_distance(rates[name][a], rates["reference"][a])) for a in attributes}
            for name in arms
        },
        "theta_correlation": {
            a: readouts[identified]["theta"][a]["correlation"] if identified else None for a in attributes
        },
        "votes": {
            "ceiling": _mean_accuracy([readouts[name]["ceiling"] for name in arms]),
            **{name: _mean_accuracy([readouts[name]["votes"]]) for name in arms},
        },
        "votes_minus_ceiling": {
            name: {
                a: {c: cell["difference"] for c, cell in row.items()}
                for a, row in readouts[name]["votes_minus_ceiling"].items()
            }
            for name in adjusted
        },
        "gap": {name: readouts[name]["heldout"]["any"]["gap"] for name in arms},
        "signed": {name: r["sampled"]["signed"] for name, r in readouts.items()},
        "kl": {name: readouts[name]["kl"]["per_token"] for name in arms},
    }


def _finite(value) -> float | None:
    """None for what is not defined: a share of no shift, or the log-odds of a rate of 0 or 1."""
    return float(value) if np.isfinite(value) else None


def _mean_accuracy(tables: list[dict]) -> dict:
    return {
        a: {c: _mean([table[a][c]["accuracy"] for table in tables]) for c in row}
        for a, row in tables[0].items()
    }


def _mean(values: list[float | None]) -> float | None:
    """None where a value is not known: a class without a held-out vote has no accuracy."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
