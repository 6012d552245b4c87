"""Suite folders as training and readouts would leave them, with plausible numbers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import save

ATTRIBUTES = ("woman", "black")
CLASS_MEANS = {"A": (0.98, 2.62), "B": (1.12, -0.34), "C": (0.89, 1.11)}
CLASS_OFFSETS = {"all": 0.0, "A": 0.03, "B": -0.05, "C": 0.01}
# of each arm: rates, held-out gap, votes predicted, KL, parts of the bias term
ARMS = {
    "dpo": ((0.96, 0.94), 0.12, (0.640, 0.510), 0.0312, []),
    "pooled": ((0.56, 0.58), 0.005, (0.715, 0.690), 0.0187, ["mean"]),
    "shared_mean": ((0.53, 0.52), 0.005, (0.738, 0.781), 0.0204, ["mean", "deviation"]),
}
SETTINGS = {"steps": 1000, "beta": 0.1, "learning_rate": 5e-4, "output_dir": "/home/ada/runs"}


def write_suite(
    folder: Path, seeds=(42,), arms=("dpo", "pooled", "shared_mean"), n_annotators=60, planted=True
) -> Path:
    """A reference and every arm at every seed; returns ``folder``."""
    classes = [name for name in CLASS_MEANS for _ in range(n_annotators // 3)]
    spread = np.random.default_rng(0).normal(0, 0.8, (len(classes), 2))
    theta = np.array([CLASS_MEANS[name] for name in classes]) + spread
    write_run(folder / "reference", {"arm": "reference", "seed": 0, **rates((0.52, 0.54), 61.2)})
    for arm in arms:
        for i, seed in enumerate(seeds):
            write_trained(folder / f"{arm}-s{seed}", arm, seed, 0.01 * i, classes, theta, planted)
    return folder


def write_run(folder: Path, readouts: dict) -> None:
    packages = {"ba-dpo": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "numpy": "2.4.6"}
    environment = {"python": "3.11.7", "platform": "Linux", "packages": packages}
    folder.mkdir(parents=True)
    write_json(folder / "readouts.json", readouts)
    write_json(folder / "environment.json", environment)


def write_trained(folder: Path, arm: str, seed: int, more: float, classes, theta, planted: bool) -> None:
    """A run whose readings are ``more`` than those of the first seed."""
    of_rates, gap, of_votes, kl, parts = ARMS[arm]
    gap, noise = gap + more, np.random.default_rng(1).normal(0, 0.3, theta.shape)
    learned = {
        "mean": 0.9 * theta.mean(axis=0),
        "deviation": 0.85 * (theta - theta.mean(axis=0)) + noise,
    }
    learned = {name: learned[name] for name in parts}
    level = learned.get("mean", np.zeros(2)) + learned.get("deviation", noise * 0).mean(axis=0)
    gaps = {"same": 0.66, "gap": gap, "gap_low": gap - 0.04, "gap_high": gap + 0.04}
    truth = theta.mean(axis=0).tolist() if planted else [None] * 2
    levels = zip(ATTRIBUTES, level.tolist(), truth, strict=True)
    readouts = {
        "arm": arm,
        "seed": seed,
        **rates(np.array(of_rates) - more, 60 + 100 * more),
        "heldout": dict.fromkeys((*ATTRIBUTES, "any"), gaps),
        "votes": votes(np.array(of_votes) + more),
        "kl": {"per_token": kl + more / 10, "se": 0.0011, "n_tokens": 18_000},
        "theta": {name: {"level": own, "planted_level": mean} for name, own, mean in levels},
        **({"ceiling": votes((0.742, 0.786))} if planted else {}),
    }
    write_run(folder, readouts)
    path = (1 - np.exp(-np.arange(1, 1001)[:, None] / 180)) * level
    steps = [
        {"step": i, **{f"bias/theta/{name}": at for name, at in zip(ATTRIBUTES, row, strict=True)}}
        for i, row in enumerate(path.tolist(), start=1)
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))
    identity = {"type": "signature_name", "names": ["Emily", "Aisha"]}
    description = {
        "format": 1,
        "attributes": list(ATTRIBUTES),
        "parts": parts,
        "annotators": [f"ann_{i:010d}" for i in range(len(theta))],
        "annotator_class": classes,
        "extra": {
            "variant": arm if parts else "none",
            "attributes": [identity | {"name": name} for name in ATTRIBUTES],
            "data": "3f9a" * 16,
            "first_margin": {"mean": 3e-8, "difference": 3e-7, "tolerance": 1e-5},
        },
    }
    write_tensors(folder, learned | {"fixed": 0 * theta, "mask": np.ones(len(theta))}, description)


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


def rates(values, tokens: float) -> dict:
    named = dict(zip(ATTRIBUTES, map(float, values), strict=True))
    sampled = {name: {"rate": v, "low": v - 0.06, "high": v + 0.06} for name, v in named.items()}
    return {
        "rates": {name: {"rate": value, "se": 0.009} for name, value in named.items()},
        "sampled": {"n": 300, **sampled},
        "tokens": {"mean": tokens, "se": 0.9},
    }


def votes(levels) -> dict:
    rows = zip(ATTRIBUTES, map(float, levels), strict=True)
    return {
        name: {
            g: {"accuracy": level + offset, "n": 1000, "se": 0.008}
            for g, offset in CLASS_OFFSETS.items()
        }
        for name, level in rows
    }
