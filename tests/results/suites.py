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
REFERENCE_RATES = (0.52, 0.54)
ARM_RATES = {"dpo": (0.96, 0.94), "pooled": (0.56, 0.58), "shared_mean": (0.53, 0.52)}
ARM_VOTES = {"dpo": (0.640, 0.610), "pooled": (0.715, 0.690), "shared_mean": (0.738, 0.781)}
ARM_PARTS = {"dpo": [], "pooled": ["mean"], "shared_mean": ["mean", "deviation"]}
CEILING = (0.742, 0.786)
KL = {"dpo": 0.0312, "pooled": 0.0187, "shared_mean": 0.0204}
CLASS_OFFSETS = {"all": 0.0, "A": 0.03, "B": -0.05, "C": 0.01}
SETTINGS = {"steps": 1000, "beta": 0.1, "learning_rate": 5e-4, "output_dir": "/home/ada/runs"}


def write_suite(
    folder: Path, seeds=(42,), arms=("dpo", "pooled", "shared_mean"), n_annotators=60, planted=True
) -> Path:
    """A reference and every arm at every seed; returns ``folder``."""
    rng = np.random.default_rng(0)
    classes = [name for name in CLASS_MEANS for _ in range(n_annotators // 3)]
    theta = np.array([CLASS_MEANS[name] for name in classes]) + rng.normal(0, 0.8, (len(classes), 2))
    annotators = [(f"ann_{i:010d}", name) for i, name in enumerate(classes)]
    readouts = {"arm": "reference", "seed": 0, **rates(REFERENCE_RATES, 0.008), "tokens": tokens(61.2)}
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
    readouts = {
        "arm": arm,
        "seed": seed,
        **rates(np.array(ARM_RATES[arm]) + rng.normal(0, 0.012, 2), 0.009),
        "tokens": tokens(float(60 + 3 * rng.random())),
        "heldout": {name: heldout(arm, 0.02, rng) for name in (*ATTRIBUTES, "any")},
        "votes": votes(ARM_VOTES[arm], rng),
        "kl": {"per_token": KL[arm] + float(rng.normal(0, 0.0015)), "se": 0.0011, "n_tokens": 18_000},
        "theta": {
            name: {"level": float(ours.mean()), "correlation": correlation(ours, truth)}
            | ({"planted_level": float(truth.mean())} if planted else {})
            for name, ours, truth in zip(ATTRIBUTES, learned.T, theta.T, strict=True)
        },
    }
    if planted:
        readouts["ceiling"] = votes(CEILING, rng)
        readouts["votes_minus_ceiling"] = minus(readouts["votes"], readouts["ceiling"])
    write_run(folder, readouts)
    if planted:
        rows = [
            {"pseudonym": p, "annotator_class": c, "theta": row.tolist()}
            for (p, c), row in zip(annotators, theta, strict=True)
        ]
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
    named = {name: float(value) for name, value in zip(ATTRIBUTES, values, strict=True)}
    sampled = {name: {"rate": v, "low": v - 0.06, "high": v + 0.06, "n": 250} for name, v in named.items()}
    return {
        "rates": {name: {"rate": value, "se": se} for name, value in named.items()},
        "sampled": {"n": 300, "signed": 0.83, "ended": 0.9, **sampled},
    }


def tokens(mean: float) -> dict:
    return {"mean": mean, "se": 0.9, "n": 300}


def heldout(arm: str, spread: float, rng: np.random.Generator) -> dict:
    gap = {"dpo": 0.12}.get(arm, 0.005) + float(rng.normal(0, 0.01))
    ends = {"gap_low": gap - 2 * spread, "gap_high": gap + 2 * spread}
    return {"same": 0.66, "cross": 0.66 + gap, "gap": gap, "n_same": 5000, "n_cross": 3000, **ends}


def votes(levels, rng: np.random.Generator) -> dict:
    def cell(level: float, group: str) -> dict:
        accuracy = level + CLASS_OFFSETS[group] + float(rng.normal(0, 0.006))
        return {"accuracy": accuracy, "n": 3000 if group == "all" else 1000, "se": 0.008}

    return {
        name: {group: cell(level, group) for group in CLASS_OFFSETS}
        for name, level in zip(ATTRIBUTES, levels, strict=True)
    }


def minus(own: dict, ceiling: dict) -> dict:
    def cell(name: str, group: str) -> dict:
        apart = own[name][group]["accuracy"] - ceiling[name][group]["accuracy"]
        return {"difference": apart, "se": 0.007, "low": apart - 0.014, "high": apart + 0.014}

    return {name: {group: cell(name, group) for group in row} for name, row in own.items()}


def correlation(learned: np.ndarray, planted: np.ndarray) -> float | None:
    return None if np.ptp(learned) < 1e-9 else float(np.corrcoef(learned, planted)[0, 1])


def write_log(folder: Path, ends: np.ndarray, n_steps: int = 1000) -> None:
    lines = []
    for step in range(1, n_steps + 1):
        theta = {
            f"bias/theta/{name}": float(end * (1 - np.exp(-step / 180)))
            for name, end in zip(ATTRIBUTES, ends, strict=True)
        }
        lines.append(json.dumps({"step": step, "rewards/margins": step / n_steps, **theta}))
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def write_bias(folder: Path, arm: str, annotators, learned: np.ndarray) -> None:
    mean, parts = learned.mean(axis=0), ARM_PARTS[arm]
    identity = {"type": "signature_name", "names": ["Emily", "Aisha"]}
    extra = {
        "variant": arm if parts else "none",
        "attributes": [identity | {"name": name} for name in ATTRIBUTES],
        "data": "3f9a" * 16,
        "first_margin": {"mean": 3e-8, "difference": 3e-7, "tolerance": 1e-5},
    }
    content = {
        "format": 1,
        "attributes": list(ATTRIBUTES),
        "parts": parts,
        "annotators": [name for name, _ in annotators],
        "annotator_class": [group for _, group in annotators],
        "extra": extra,
    }
    tensors = {"mean": mean, "deviation": learned - mean}
    kept = {name: tensors[name] for name in parts}
    kept |= {"fixed": np.zeros_like(learned), "mask": np.ones(len(learned))}
    write_tensors(folder, kept, content)


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], description: dict) -> None:
    """A bias term's two files, the second with the checksum of the first."""
    content = save({name: np.asarray(values, dtype=np.float32) for name, values in tensors.items()})
    (folder / "bias.safetensors").write_bytes(content)
    write_json(folder / "bias.json", description | {"sha256": hashlib.sha256(content).hexdigest()})
