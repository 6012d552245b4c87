"""Suite folders as training and readouts would leave them, with plausible numbers."""

import hashlib
import json
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import save

ATTRIBUTES = ("woman", "black")
# of each arm: rates, held-out gap, votes predicted, KL, learned means
ARMS = {
    "dpo": ((0.96, 0.94), 0.12, (0.640, 0.510), 0.0312, {}),
    "pooled": ((0.56, 0.58), 0.005, (0.715, 0.690), 0.0187, {"mean": [0.9, 1.0]}),
    "shared_mean": ((0.53, 0.52), 0.005, (0.738, 0.781), 0.0204, {"mean": [0.9, 1.0]}),
}
SETTINGS = {"steps": 1000, "beta": 0.1, "learning_rate": 5e-4, "output_dir": "/home/ada/runs"}


def write_suite(folder: Path, seeds=(42,), arms=tuple(ARMS), n_annotators=60, planted=True) -> Path:
    """A reference and every arm at every seed; returns ``folder``."""
    write_run(folder / "reference", {"arm": "reference", "seed": 0, "rates": rates((0.52, 0.54))})
    for arm in arms:
        for i, seed in enumerate(seeds):
            write_trained(folder / f"{arm}-s{seed}", arm, seed, 0.01 * i, n_annotators, planted)
    return folder


def write_run(folder: Path, readouts: dict) -> None:
    packages = {"ba-dpo": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "numpy": "2.4.6"}
    environment = {"python": "3.11.7", "platform": "Linux", "packages": packages}
    folder.mkdir(parents=True)
    write_json(folder / "readouts.json", readouts)
    write_json(folder / "environment.json", environment)


def write_trained(folder: Path, arm: str, seed: int, more: float, n_annotators: int, planted: bool):
    """A run whose readings are ``more`` than those of the first seed."""
    of_rates, gap, of_votes, kl, learned = ARMS[arm]
    level = np.array(learned.get("mean", [0.0, 0.0]))
    gap, truth = gap + more, [1.0, 1.12] if planted else [None] * 2
    gaps = {"same": 0.66, "gap": gap, "gap_low": gap - 0.04, "gap_high": gap + 0.04}
    readouts = {
        "arm": arm,
        "seed": seed,
        "rates": rates(np.array(of_rates) - more),
        "heldout": dict.fromkeys((*ATTRIBUTES, "any"), gaps),
        "votes": votes(np.array(of_votes) + more),
        "kl": {"per_token": kl + more / 10, "se": 0.0011, "n_tokens": 18_000},
        "theta": {
            name: {"planted_level": mean, "level": (1 + more) * own}
            for name, mean, own in zip(ATTRIBUTES, truth, level.tolist(), strict=True)
        },
        **({"ceiling": votes((0.742, 0.786))} if planted else {}),
    }
    write_run(folder, readouts)
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))
    identity = {"type": "signature_name", "names": ["Emily", "Aisha"]}
    if arm == "shared_mean":
        learned = learned | {"deviation": np.random.default_rng(1).normal(0, 0.3, (n_annotators, 2))}
    description = {
        "format": 1,
        "attributes": list(ATTRIBUTES),
        "parts": list(learned),
        "annotators": [f"ann_{i:010d}" for i in range(n_annotators)],
        "annotator_class": ["ABC"[i % 3] for i in range(n_annotators)],
        "extra": {
            "variant": arm if learned else "none",
            "attributes": [identity | {"name": name} for name in ATTRIBUTES],
            "data": "3f9a" * 16,
            "first_margin": {"mean": 3e-8, "difference": 3e-7, "tolerance": 1e-5},
        },
    }
    fixed = {"fixed": np.zeros((n_annotators, 2)), "mask": np.ones(n_annotators)}
    write_tensors(folder, learned | fixed, description)


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))


def changed(path: Path, **changes) -> None:
    """A JSON file with other entries."""
    write_json(path, json.loads(path.read_text()) | changes)


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], description: dict) -> None:
    """A bias term's two files, the second with the checksum of the first."""
    content = save({name: np.asarray(values, dtype=np.float32) for name, values in tensors.items()})
    (folder / "bias.safetensors").write_bytes(content)
    write_json(folder / "bias.json", description | {"sha256": hashlib.sha256(content).hexdigest()})


def rates(values) -> dict:
    return {name: {"rate": float(v), "se": 0.009} for name, v in zip(ATTRIBUTES, values, strict=True)}


def votes(levels) -> dict:
    """The share of votes that an arm predicts, overall and of two classes."""
    return {
        name: {
            group: {"accuracy": float(level) + more, "n": 1000, "se": 0.008}
            for group, more in (("all", 0.0), ("A", 0.03), ("B", -0.05))
        }
        for name, level in zip(ATTRIBUTES, levels, strict=True)
    }
