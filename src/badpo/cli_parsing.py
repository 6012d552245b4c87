"""What people write on the command line, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from badpo.data.problems import ConfigError
from badpo.data.yaml_files import parse_value

LARGEST_SEED = 2**32 - 1


def parsed_attribute(text: str) -> dict[str, Any]:
    """The configuration of an attribute written as NAME:KEY=VALUE,KEY=VALUE.

    Several values of one key are separated by semicolons.

    Examples
    --------
    >>> parsed_attribute("length:ratio=1.5")
    {'type': 'length', 'ratio': 1.5}
    >>> parsed_attribute("word_list:name=hedges,words=no;perhaps")
    {'type': 'word_list', 'name': 'hedges', 'words': ['no', 'perhaps']}
    """
    kind, _, parameters = text.partition(":")
    config: dict[str, Any] = {"type": kind}
    for part in parameters.split(",") if parameters else []:
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(
                f'--attribute {text}: "{part}" is not KEY=VALUE; write it as in length:ratio=1.5'
            )
        values = [_parameter(item) for item in value.split(";")]
        config[name] = values if len(values) > 1 else values[0]
    return config


def parsed_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str] | None:
    """Names and what they stand for, from LEFT=RIGHT; None when there are none.

    Parameters
    ----------
    pairs : sequence of str or None
    option : str
        The option that they were given with, for the message.

    Examples
    --------
    >>> parsed_pairs(["annotator=worker_id"], "--column")
    {'annotator': 'worker_id'}
    """
    mapping = {}
    for pair in pairs or []:
        left, equals, right = pair.rpartition("=")
        if not equals:
            example = {"--column": "annotator=worker_id", "--winner": "model_a=a"}[option]
            raise ConfigError(f'{option} {pair}: there is no "="; write it as in {option} {example}')
        mapping[left] = right
    return mapping or None


def parsed_seeds(text: str) -> list[int]:
    """Training seeds separated by commas, each once: an interval over runs counts every run once.

    Examples
    --------
    >>> parsed_seeds("42,123,456")
    [42, 123, 456]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f'--seeds "{text}": write whole numbers separated by commas, as in 42,123,456')
    seeds = [int(part) for part in parts]
    for seed in seeds:
        if seed > LARGEST_SEED:
            raise ConfigError(f"--seeds: {seed} is more than {LARGEST_SEED}, the largest seed there is")
        if seeds.count(seed) > 1:
            raise ConfigError(f"--seeds: {seed} is given twice; a seed is one run, so name each once")
    return seeds


def parsed_sweep(text: str | None) -> tuple[str, list[Any]] | None:
    """A parameter and the values it is to take, from KEY=V1,V2; None for None.

    Examples
    --------
    >>> parsed_sweep("ratio=1.25,1.5,2")
    ('ratio', [1.25, 1.5, 2])
    """
    if text is None:
        return None
    name, equals, values = text.partition("=")
    if not equals:
        raise ConfigError(f"--sweep {text}: write it as KEY=V1,V2, as in ratio=1.25,1.5,2")
    return name, [_parameter(value) for value in values.split(",")]


def parsed_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Recipe keys as ``trl dpo`` takes them: ``--key value``, ``--key=value``, ``--key`` and ``--no_key``.

    Examples
    --------
    >>> parsed_flags(["--learning-rate", "5e-7", "--use_peft", "--report_to", "tensorboard", "trackio"])
    {'learning_rate': 5e-07, 'use_peft': True, 'report_to': ['tensorboard', 'trackio']}
    >>> parsed_flags(["--bias.variant=pooled", "--no_disable_dropout"])
    {'bias.variant': 'pooled', 'disable_dropout': False}
    """
    given: dict[str, list[str]] = {}
    values: list[str] | None = None
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            values = given.setdefault(name.replace("-", "_"), [])
            values.extend([value] if equals else [])
        elif values is None:
            raise ConfigError(
                f'"{argument}" is not a flag; write keys as --key value, and the recipe as --config FILE'
            )
        else:
            values.append(argument)
    return dict(_flag(name, texts) for name, texts in given.items())


def _parameter(text: str) -> Any:
    """A number, true or false, or the text itself: words such as no and on stay words."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _flag(name: str, texts: Sequence[str]) -> tuple[str, Any]:
    if not texts:
        return name.removeprefix("no_"), not name.startswith("no_")
    parsed = [parse_value(text) for text in texts]
    return name, parsed[0] if len(parsed) == 1 else parsed
