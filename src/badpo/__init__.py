"""Preference training that keeps the annotators' shared bias out of the language model.

Importing badpo loads neither torch nor transformers, because badpo imports the module of a public name only when the
name is first used. ``__init__.pyi`` lists these modules for type checkers.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "AuditMonitor": "badpo.auditing.watch",
    "AuditResult": "badpo.auditing.result",
    "BADPOConfig": "badpo.training.config",
    "BADPOTrainer": "badpo.training.trainer",
    "BiasTerm": "badpo.objective.bias",
    "ConfigError": "badpo.data.problems",
    "DataError": "badpo.data.problems",
    "Judgments": "badpo.data.judgments",
    "audit": "badpo.auditing.audit",
}

__all__ = sorted([*_HOME, "__version__", "attributes"])


def __getattr__(name: str):
    if name == "attributes":
        return importlib.import_module("badpo.attributes")
    if name in _HOME:
        from badpo.data.problems import telling_what_lacks

        with telling_what_lacks():
            return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'badpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
