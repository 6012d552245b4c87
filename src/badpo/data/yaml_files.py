"""Read YAML files whose top level is a mapping, with the line number of each key."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from badpo.data.problems import ConfigError

# YAML 1.1 reads 5e-7 and 5.0e7 as text, because numbers in exponent notation need a dot and a signed exponent.
_BARE_EXPONENT = re.compile(r"^[-+]?(?:\d+|\d+\.\d*|\.\d+)[eE][-+]?\d+$")
_FLOAT_TAG = "tag:yaml.org,2002:float"
# A recipe has a few thousand characters. Reading a million characters takes seconds.
_MOST_CHARACTERS = 200_000
# Python cannot print integers of more than 4,300 digits, which have at least 14,000 bits.
_MOST_BITS = 10_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]  # PyYAML has no types
    """A YAML loader that reads only plain values and refuses aliases and tags.

    With aliases, a short YAML file could contain billions of values. Tags could change the types of values.
    """

    def fetch_alias(self) -> None:
        self._refuse("badpo does not read aliases (*name); write the value itself")

    def fetch_tag(self) -> None:
        self._refuse("badpo does not read tags (!name); leave out the tag")

    def _refuse(self, problem: str) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())


def _construct_whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    # YAML 1.1 reads 59:59:59 as a number in base 60, so Python does not apply its limit on digits
    value: int = loader.construct_yaml_int(node)
    if value.bit_length() > _MOST_BITS:
        raise ValueError(f"an integer has more than {_MOST_BITS:,} bits")
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_whole_number)
_Loader.add_implicit_resolver(_FLOAT_TAG, _BARE_EXPONENT, list("-+.0123456789"))


@dataclass(frozen=True)
class YamlFile:
    """The mapping in a YAML file, with the line number of each key."""

    name: str
    values: dict[str, Any]
    lines: dict[tuple[str, ...], int]

    def where(self, place: tuple[str, ...]) -> str:
        """Return the file and the line of a key; if the line is unknown, return the line of the enclosing block."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.lines:
                return f"{self.name}:{self.lines[place[:length]]}"
        return self.name or "the command line"


def read_yaml(path: str | Path) -> YamlFile:
    """Read a YAML file whose top level is a mapping.

    If the file cannot be read, is not valid YAML or has no mapping at its top level, raise a `ConfigError` that names
    the file and, if known, the line.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"the file has more than {_MOST_CHARACTERS:,} characters, which is too long for a recipe or a run"
            )
        loader = _Loader(text)
        node = loader.get_single_node()
        places, values = [*_places(node, ())], loader.construct_document(node) if node else None
        if not isinstance(node, yaml.MappingNode | None):
            raise ValueError("the file must consist of keys and values, such as beta: 0.1")
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
            what = f'"{".".join(place)}" is set here and on line {lines[place]}'
            raise ConfigError(f"E201 {path.name}:{line}: {what}")
        lines[place] = line
    return YamlFile(path.name, values or {}, lines)


def parse_value(text: str) -> Any:
    """Convert a string to its value in a recipe: a number, a boolean, None, a list, or a string."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, dict) else value


def _places(node: yaml.Node | None, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the keys that lead to each entry of a mapping or element of a list, and the line number of the entry."""
    inside = []
    if isinstance(node, yaml.MappingNode):
        inside = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inside = [(str(number), value, value) for number, value in enumerate(node.value)]
    for key, start, value in inside:
        yield (*place, key), start.start_mark.line + 1
        yield from _places(value, (*place, key))
