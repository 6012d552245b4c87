"""YAML files whose top level is a mapping: their values, and the line of each key."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from badpo.data.problems import ConfigError

# YAML 1.1 reads 5e-7 and 5.0e7 as text, because the dot and the sign of the exponent are compulsory there.
_BARE_EXPONENT = re.compile(r"^[-+]?(?:\d+|\d+\.\d*|\.\d+)[eE][-+]?\d+$")
_FLOAT_TAG = "tag:yaml.org,2002:float"
# A recipe has a few thousand; reading takes seconds for each million.
_MOST_CHARACTERS = 200_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]  # PyYAML has no types
    """Plain values only: an alias makes a short file stand for billions of them, a tag makes another thing of one."""

    def fetch_alias(self) -> None:
        self._refuse("an alias (*name) is not read; write the value")

    def fetch_tag(self) -> None:
        self._refuse("a tag (!name) is not read; leave it out")

    def _refuse(self, problem: str) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())


_Loader.add_implicit_resolver(_FLOAT_TAG, _BARE_EXPONENT, list("-+.0123456789"))


@dataclass(frozen=True)
class YamlFile:
    """The mapping in a YAML file, and the line of each of its keys."""

    name: str
    values: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def where(self, place: tuple[str, ...]) -> str:
        """The line of a key, or of the innermost block around it that has one."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.lines:
                return f"{self.name}:{self.lines[place[:length]]}"
        return self.name or "the command line"


def read_yaml(path: str | Path) -> YamlFile:
    """Read a YAML file whose top level is a mapping; a `ConfigError` with the line where it is something else."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"it has more than {_MOST_CHARACTERS:,} characters, as no recipe and no run has"
            )
        loader = _Loader(text)
        node = loader.get_single_node()
        places, values = [*_places(node, ())], loader.construct_document(node) if node else None
        if not isinstance(node, yaml.MappingNode | None):
            raise ValueError("must be a list of keys and values, such as beta: 0.1")
    except OSError as error:
        raise ConfigError(f"E208 {path}: cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        if isinstance(error, RecursionError):
            problem = "its values are nested too deeply"
        where = f"{path.name}:{mark.line + 1}" if mark else path.name
        raise ConfigError(f"E208 {where}: not valid YAML: {problem or error}") from error
    lines: dict[tuple[str, ...], int] = {}
    for place, line in places:
        if place in lines:
            what = f'"{".".join(place)}" stands here and on line {lines[place]}'
            raise ConfigError(f"E201 {path.name}:{line}: {what}")
        lines[place] = line
    return YamlFile(path.name, values or {}, lines)


def parse_value(text: str) -> Any:
    """One value as a recipe would read it: a number, true or false, nothing, a list, or text."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, dict) else value


def _places(node: yaml.Node | None, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every key and every entry of a list, with its line."""
    inside = []
    if isinstance(node, yaml.MappingNode):
        inside = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inside = [(str(number), value, value) for number, value in enumerate(node.value)]
    for key, start, value in inside:
        yield (*place, key), start.start_mark.line + 1
        yield from _places(value, (*place, key))
