"""What people write on the command line, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from badpo.data.problems import ConfigError
from badpo.data.yaml_files import parse_value

LARGEST_SEED = 2**32 - 1


def parted(text: str, option: str, example: str) -> tuple[str, str]:
    """What stands left and right of the last equals sign of an option's value."""
    left, equals, right = text.rpartition("=")
    if not equals:
        raise ConfigError(f'{option} {text}: there is no "="; write it as in {option} {example}')
    return left, right


def parsed_attribute(text: str) -> dict[str, Any]:
    """The configuration of an attribute written as NAME:KEY=VALUE,KEY=VALUE;VALUE."""
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
    """Names and what they stand for, from LEFT=RIGHT; None when there are none."""
    example = {"--column": "annotator=worker_id", "--winner": "model_a=a"}[option]
    return dict(parted(pair, option, example) for pair in pairs or ()) or None


def parsed_seeds(text: str) -> list[int]:
    """Training seeds separated by commas, each once: an interval over runs counts every run once."""
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
    """A parameter and the values that it is to take, from KEY=V1,V2; None for None."""
    if text is None:
        return None
    name, values = parted(text, "--sweep", "ratio=1.25,1.5,2")
    return name, [_parameter(value) for value in values.split(",")]


def parsed_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Recipe keys as ``trl dpo`` takes them: ``--key value``, ``--key=value``, ``--key`` and ``--no_key``.

    Examples
    --------
    >>> parsed_flags(["--learning-rate", "5e-7", "--no_disable_dropout", "--report_to", "tensorboard", "trackio"])
    {'learning_rate': 5e-07, 'disable_dropout': False, 'report_to': ['tensorboard', 'trackio']}
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
