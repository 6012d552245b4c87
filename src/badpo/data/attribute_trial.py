"""What an attribute finds in given data, so that a rule can be judged before anything is trained on it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from badpo.data.attributes import ATTRIBUTES, Attribute, attribute_from_config, plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError

# Parameters with which each type can be tried; shown to people as the example of the type.
EXAMPLES: dict[str, dict[str, Any]] = {
    "length": {"ratio": 1.5},
    "length_words": {"threshold": 20},
    "length_tokens": {"tokenizer": "gpt2", "threshold": 20},
    "markdown": {},
    "lists": {},
    "headers": {},
    "bold": {},
    "emoji": {},
    "code": {},
    "links": {},
    "hedging": {},
    "refusal": {},
    "first_person": {},
    "signature_name": {"name": "woman", "names": ["Emily", "Anne"]},
    "word_list": {"name": "thanks", "words": ["thank you", "thanks"]},
    "regex": {"name": "question", "pattern": "[?]$"},
    "column": {"name": "formality", "a": "formal_a", "b": "formal_b"},
    "position": {},
}
_SHOWN = 100


def describe_attributes() -> list[dict[str, str]]:
    """The built-in attributes: ``type``, ``scope``, ``example`` as the command line takes it, and ``what`` it is.

    Examples
    --------
    >>> describe_attributes()[0]["example"]
    'length:ratio=1.5'
    """
    return [
        {
            "type": kind,
            "scope": attribute_from_config({"type": kind, **EXAMPLES[kind]}).scope,
            "example": _written(kind, EXAMPLES[kind]),
            "what": (inspect.getdoc(constructor) or "").splitlines()[0].replace("`", ""),
        }
        for kind, constructor in ATTRIBUTES.items()
    ]


def attribute_trials(
    judgments: Judgments,
    configs: Sequence[Mapping[str, Any]],
    sweep: tuple[str, Sequence[Any]] | None = None,
    n_examples: int = 3,
) -> list[dict[str, Any]]:
    """What each attribute finds in the data.

    Parameters
    ----------
    judgments : Judgments
    configs : sequence of mapping
        As `attribute_from_config` takes them.
    sweep : (parameter, values), optional
        Try each attribute once with each of these values of the parameter.
    n_examples : int
        How many responses to show on each side.

    Returns
    -------
    list of dict
        For each attribute and value: ``attribute``, ``parameters``, ``scope``, ``n_cross`` (judgments whose sides
        differ), ``cross_share`` of all judgments, ``carrier_wins``, ``log_odds`` with ``ci_low`` and ``ci_high``
        (95 %, clustered by prompt; where every vote went one way the log-odds and one end are None), and
        ``examples``: the beginnings of responses ``with`` and ``without`` the attribute in comparisons that differ
        on it.

    Raises
    ------
    ConfigError
        No attribute, or one that is not there.

    Examples
    --------
    >>> rows = [{"prompt": "Why?", "chosen": "because it is so", "rejected": "so"},
    ...         {"prompt": "How?", "chosen": "so", "rejected": "in the usual way"}]
    >>> trial, = attribute_trials(Judgments.read(rows), [{"type": "length"}])
    >>> trial["n_cross"], trial["carrier_wins"], trial["examples"]["without"]
    (2, 0.5, ['so'])
    """
    if not configs:
        raise ConfigError("name an attribute to test, as in --attribute length:ratio=1.5")
    name, values = sweep or ("", [None])
    tried = [config if sweep is None else {**config, name: value} for config in configs for value in values]
    return [_trial(judgments, attribute_from_config(config), n_examples) for config in tried]


def _trial(judgments: Judgments, attribute: Attribute, n_examples: int) -> dict[str, Any]:
    measured = judgments.with_attributes([attribute])
    (found,) = measured.offline_log_odds()
    return {
        "attribute": attribute.name,
        "parameters": {k: v for k, v in attribute.config.items() if k not in ("type", "name")},
        "scope": attribute.scope,
        "n_cross": found.n_cross,
        "cross_share": found.n_cross / measured.n_votes,
        "carrier_wins": found.carrier_wins,
        "log_odds": found.log_odds,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "examples": _examples(measured, n_examples),
    }


def _examples(measured: Judgments, n_examples: int) -> dict[str, list[str]]:
    rows = np.flatnonzero(measured.cross_group()[:, 0])
    comparison = measured.votes["comparison"].to_numpy()[rows]
    _, first = np.unique(comparison, return_index=True)
    found: dict[str, dict[str, None]] = {"with": {}, "without": {}}
    for row in rows[np.sort(first)]:
        pair = measured.comparisons.iloc[measured.votes["comparison"].iloc[row]]
        a_has_more = measured.delta[row, 0] > 0
        found["with"][_beginning(pair["response_a" if a_has_more else "response_b"])] = None
        found["without"][_beginning(pair["response_b" if a_has_more else "response_a"])] = None
    return {side: list(texts)[:n_examples] for side, texts in found.items()}


def _beginning(response: Any) -> str:
    text = " ".join(plain_text(response).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _written(kind: str, parameters: Mapping[str, Any]) -> str:
    parts = [f"{k}={';'.join(v) if isinstance(v, list) else v}" for k, v in parameters.items()]
    return f"{kind}:{','.join(parts)}" if parts else kind
