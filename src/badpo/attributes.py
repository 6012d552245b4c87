"""Attributes to declare: ``from badpo.attributes import Length, Markdown``."""

from badpo.data.attributes import *
from badpo.data.attributes import BUILT_IN

# each built-in attribute is defined in a single file
__all__ = [
    "ATTRIBUTES",
    "Attribute",
    "PythonFunction",
    "attribute_from_config",
    "plain_text",
    *(row.make.__name__ for row in BUILT_IN.values()),
]
