"""Suite folders as training and readouts would leave them, with plausible numbers from a seeded generator."""

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
# of each arm: rates, votes predicted, KL, parts of the bias term
ARMS = {
    "dpo": ((0.96, 0.94), (0.640, 0.610), 0.0312, []),
    "pooled": ((0.56, 0.58), (0.715, 0.690), 0.0187, ["mean"]),
    "shared_mean": ((0.53, 0.52), (0.738, 0.781), 0.0204, ["mean", "deviation"]),
}
CEILING = (0.742, 0.786)
SETTINGS = {"steps": 1000, "beta": 0.1, "learning_rate": 5e-4, "output_dir": "/home/ada/runs"}


def write_suite(
    folder: Path, seeds=(42,), arms=("dpo", "pooled", "shared_mean"), n_annotators=60, planted=True
) -> Path:
    """A reference and every arm at every seed; returns ``folder``."""
    rng = np.random.default_rng(0)
    classes = [name for name in CLASS_MEANS for _ in range(n_annotators // 3)]
    theta = np.array([CLASS_MEANS[name] for name in classes]) + rng.normal(0, 0.8, (len(classes), 2))
    annotators = [(f"ann_{i:010d}", name) for i, name in enumerate(classes)]
    readouts = {
        "arm": "reference",
        "seed": 0,
        **rates((0.52, 0.54), 0.008),
        "tokens": {"mean": 61.2, "se": 0.9},
    }
    write_run(folder / "reference", readouts)
    for arm in arms:
        for seed in seeds:
            write_trained(folder / f"{arm}-s{seed}", arm, seed, annotators, theta, planted)
    return folder


def write_run(folder: Path, readouts: dict) -> None:
    packages = {"ba-dpo": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "numpy": "2.4.6"}
    folder.mkdir(parents=True)
    write_json(folder / "readouts.json", readouts)
    write_json(folder / "environment.json", {"python": "3.11.7", "platform": "Linux", "packages": packages})


def write_trained(folder: Path, arm: str, seed: int, annotators, theta: np.ndarray, planted: bool) -> None:
    rng = np.random.default_rng([seed, len(arm)])
    learned = learned_theta(arm, theta, rng)
    of_rates, of_votes, kl, _ = ARMS[arm]
    readouts = {
        "arm": arm,
        "seed": seed,
        **rates(np.array(of_rates) + rng.normal(0, 0.012, 2), 0.009),
        "tokens": {"mean": float(60 + 3 * rng.random()), "se": 0.9},
        "heldout": {name: heldout(arm, 0.02, rng) for name in (*ATTRIBUTES, "any")},
        "votes": votes(of_votes, rng),
        "kl": {"per_token": kl + float(rng.normal(0, 0.0015)), "se": 0.0011, "n_tokens": 18_000},
        "theta": {
            name: {"level": float(own.mean()), "planted_level": float(truth.mean()) if planted else None}
            for name, own, truth in zip(ATTRIBUTES, learned.T, theta.T, strict=True)
        },
    }
    if planted:
        readouts["ceiling"] = votes(CEILING, rng)
    write_run(folder, readouts)
    if planted:
        people = zip(annotators, theta.tolist(), strict=True)
        rows = [{"pseudonym": p, "annotator_class": c, "theta": row} for (p, c), row in people]
        write_json(folder / "planted.json", {"attributes": list(ATTRIBUTES), "annotators": rows})
    write_log(folder, learned.mean(axis=0))
    write_bias(folder, arm, annotators, learned)
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))


def changed(path: Path, **changes) -> None:
    """A JSON file with other entries."""
    write_json(path, json.loads(path.read_text()) | changes)


def learned_theta(arm: str, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if arm == "dpo":
        return np.zeros_like(theta)
    mean = np.broadcast_to(theta.mean(axis=0) * 0.9, theta.shape)
    if arm == "pooled":
        return mean.copy()
    return mean + 0.85 * (theta - theta.mean(axis=0)) + rng.normal(0, 0.3, theta.shape)


def rates(values, se: float) -> dict:
    named = dict(zip(ATTRIBUTES, map(float, values), strict=True))
    return {
        "rates": {name: {"rate": value, "se": se} for name, value in named.items()},
        "sampled": {
            "n": 300,
            **{name: {"rate": v, "low": v - 0.06, "high": v + 0.06} for name, v in named.items()},
        },
    }


def heldout(arm: str, spread: float, rng: np.random.Generator) -> dict:
    gap = {"dpo": 0.12}.get(arm, 0.005) + float(rng.normal(0, 0.01))
    return {"same": 0.66, "gap": gap, "gap_low": gap - 2 * spread, "gap_high": gap + 2 * spread}


def votes(levels, rng: np.random.Generator) -> dict:
    def cell(level: float, offset: float) -> dict:
        return {"accuracy": level + offset + float(rng.normal(0, 0.006)), "n": 1000, "se": 0.008}

    rows = zip(ATTRIBUTES, levels, strict=True)
    return {name: {g: cell(level, offset) for g, offset in CLASS_OFFSETS.items()} for name, level in rows}


def write_log(folder: Path, ends: np.ndarray, n_steps: int = 1000) -> None:
    share = 1 - np.exp(-np.arange(1, n_steps + 1) / 180)
    lines = [
        {
            "step": step + 1,
            **{f"bias/theta/{name}": end * done for name, end in zip(ATTRIBUTES, ends, strict=True)},
        }
        for step, done in enumerate(share.tolist())
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


def write_bias(folder: Path, arm: str, annotators, learned: np.ndarray) -> None:
    mean, parts = learned.mean(axis=0), ARMS[arm][-1]
    identity = {"type": "signature_name", "names": ["Emily", "Aisha"]}
    content = {
        "format": 1,
        "attributes": list(ATTRIBUTES),
        "parts": parts,
        "annotators": [name for name, _ in annotators],
        "annotator_class": [group for _, group in annotators],
        "extra": {
            "variant": arm if parts else "none",
            "attributes": [identity | {"name": name} for name in ATTRIBUTES],
            "data": "3f9a" * 16,
            "first_margin": {"mean": 3e-8, "difference": 3e-7, "tolerance": 1e-5},
        },
    }
    kept = {name: {"mean": mean, "deviation": learned - mean}[name] for name in parts}
    write_tensors(folder, kept | {"fixed": 0 * learned, "mask": np.ones(len(learned))}, content)


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], description: dict) -> None:
    """A bias term's two files, the second with the checksum of the first."""
    content = save({name: np.asarray(values, dtype=np.float32) for name, values in tensors.items()})
    (folder / "bias.safetensors").write_bytes(content)
    write_json(folder / "bias.json", description | {"sha256": hashlib.sha256(content).hexdigest()})
