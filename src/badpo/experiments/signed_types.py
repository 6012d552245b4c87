"""EM-DPO on a signed corpus: its type policies trained, measured and mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from badpo.data.files import resealed
from badpo.data.judgments import Judgments
from badpo.experiments.em_dpo import Types, fit_types, mixed, mixture_logits, mixture_weights
from badpo.experiments.signed_readouts import ReferenceStage, answers, planted
from badpo.objective.bias import BiasTerm
from badpo.objective.group_weights import AnnotatorWeights
from badpo.readouts.policies import implicit_margins
from badpo.readouts.votes import logit_accuracy
from badpo.training.logprobs import response_logps
from badpo.training.model_files import load_weights
from badpo.training.run_folder import write_json

# (judgments, settings, objective, what tells its run from others, run folder): trains a policy from the reference.
TrainPolicy = Callable[[Judgments, Any, AnnotatorWeights, Mapping[str, Any], Path], None]
# (run folder, its bias term): the readouts of a policy.
MeasurePolicy = Callable[[Path, BiasTerm], dict]


def types_readouts(
    arm_settings: Mapping[str, Any],
    stage: ReferenceStage,
    settings,
    seed: int,
    folder: Path,
    train: TrainPolicy,
    measure: MeasurePolicy,
) -> dict:
    """Fit the types, mix their policies by MinMax-DPO, and write the mixture's readouts to ``readouts.json``.

    A mixture answers each prompt with one of its policies, so that its readouts are their weighted means. Votes are
    predicted with each annotator's own types, and the difference from the ceiling has no interval.

    Parameters
    ----------
    arm_settings : mapping
        Of the arm; see `badpo.experiments.em_dpo.fit_types`.
    stage : ReferenceStage
    settings : SuiteSettings
    seed : int
    folder : Path
        Run folders of the types are ``folder/type<k>``.
    train, measure : functions

    Returns
    -------
    dict
        As those of each type, and ``types``: the mixture's ``weights`` and how many
        ``annotators`` are most probably of each type.
    """

    def train_type(judgments: Judgments, weight: np.ndarray, share: float, of_type: Path) -> None:
        steps = max(1, round(share * settings.steps))
        train(
            judgments,
            replace(settings, steps=steps),
            AnnotatorWeights(weight, judgments.votes["annotator"]),
            {"annotator_weights": weight.tolist()},
            of_type,
        )

    def margins(of_type: Path, judgments: Judgments) -> np.ndarray:
        return implicit_margins(
            load_weights(of_type / "model").to(stage.model.device),
            stage.model,
            stage.cache(),
            judgments,
            stage.tokenizer,
            "paper",
            settings.max_length,
            settings.max_prompt_length,
            settings.beta,
        )

    types = fit_types(stage.train, arm_settings, seed, folder, train_type, margins)
    each = [measure(of_type, BiasTerm.load(of_type)) for of_type in types.folders]
    weights = _minmax(types, stage, settings, seed)
    u = np.stack([margins(of_type, stage.held_out) for of_type in types.folders], axis=1)
    votes = logit_accuracy(mixture_logits(u, types.probabilities, stage.held_out), stage.held_out).to_json()
    readouts = mixed(each, weights)
    readouts |= {
        "arm": folder.name.rsplit("-s", 1)[0],
        "votes": votes,
        "votes_minus_ceiling": _differences(votes, readouts["ceiling"]),
        "types": {"weights": weights.tolist(), "annotators": types.annotators},
    }
    with resealed(folder, ["planted.json", "readouts.json"]):
        write_json(folder / "planted.json", planted(stage))
        write_json(folder / "readouts.json", readouts)
    return readouts


def _minmax(types: Types, stage: ReferenceStage, settings, seed: int) -> np.ndarray:
    """The mixture's weights, from the answers of every type's policy to the signing prompts."""
    policies = [load_weights(of_type / "model").to(stage.model.device) for of_type in types.folders]
    pairs = [
        [
            (np.asarray(answer.prompt_ids), np.asarray(answer.token_ids))
            for answer in answers(policy, stage.tokenizer, stage.prompt_ids, settings, seed)
        ]
        for policy in policies
    ]
    of_reference = [_sums(stage.model, written) for written in pairs]

    def log_ratio(i: int, j: int) -> float:
        return float(np.mean(_sums(policies[i], pairs[j]) - of_reference[j]))

    return mixture_weights(log_ratio, len(policies))


def _sums(model, pairs) -> np.ndarray:
    return np.array([values.sum(dtype=np.float64) for values in response_logps(model, pairs)])


def _differences(votes: Mapping[str, dict], ceiling: Mapping[str, dict]) -> dict:
    """Accuracy minus the ceiling's, by attribute and class, in the form of `badpo.readouts.votes.VoteDifference`."""

    def difference(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
        return None if one[name] is None or other[name] is None else one[name] - other[name]

    return {
        attribute: {
            name: {
                "difference": difference(cell, ceiling[attribute][name], "accuracy"),
                "se": None,
                "low": None,
                "high": None,
                "n": cell["n"],
                "nll_difference": difference(cell, ceiling[attribute][name], "nll"),
            }
            for name, cell in row.items()
        }
        for attribute, row in votes.items()
    }
