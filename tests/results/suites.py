"""MeasuredRuns folders as training and readouts would leave them, with plausible numbers from a seeded generator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import save_file

ATTRIBUTES = ("woman", "black")
CLASS_MEANS = {"A": (0.98, 2.62), "B": (1.12, -0.34), "C": (0.89, 1.11)}
REFERENCE_RATES = (0.52, 0.54)
ARM_RATES = {"dpo": (0.96, 0.94), "pooled": (0.56, 0.58), "shared_mean": (0.53, 0.52)}
ARM_VOTES = {"dpo": (0.640, 0.610), "pooled": (0.715, 0.690), "shared_mean": (0.738, 0.781)}
CEILING = (0.742, 0.786)
KL = {"dpo": 0.0312, "pooled": 0.0187, "shared_mean": 0.0204}
CLASS_OFFSETS = {"all": 0.0, "A": 0.03, "B": -0.05, "C": 0.01}


def write_suite(
    folder: Path, seeds=(42,), arms=("dpo", "pooled", "shared_mean"), n_annotators=60, planted=True
) -> Path:
    """A reference and every arm at every seed; returns ``folder``."""
    rng = np.random.default_rng(0)
    classes = [name for name in CLASS_MEANS for _ in range(n_annotators // 3)]
    theta = np.array([CLASS_MEANS[name] for name in classes]) + rng.normal(0, 0.8, (len(classes), 2))
    annotators = [(f"ann_{i:010d}", name) for i, name in enumerate(classes)]
    write_reference(folder / "reference")
    for arm in arms:
        for seed in seeds:
            write_run(folder / f"{arm}-s{seed}", arm, seed, annotators, theta, planted)
    return folder


def write_reference(folder: Path) -> None:
    folder.mkdir(parents=True)
    readouts = {
        "arm": "reference",
        "seed": 0,
        "rates": rates(REFERENCE_RATES, 0.008),
        "sampled": sampled(REFERENCE_RATES),
        "tokens": {"mean": 61.2, "se": 0.9, "n": 300},
    }
    (folder / "readouts.json").write_text(json.dumps(readouts))
    write_environment(folder)


def write_run(folder: Path, arm: str, seed: int, annotators, theta: np.ndarray, planted: bool) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(arm)])
    learned = learned_theta(arm, theta, rng)
    found = np.array(ARM_RATES[arm]) + rng.normal(0, 0.012, 2)
    readouts = {
        "arm": arm,
        "seed": seed,
        "rates": rates(found, 0.009),
        "sampled": sampled(found),
        "tokens": {"mean": float(60 + 3 * rng.random()), "se": 0.9, "n": 300},
        "heldout": {
            **{name: heldout(arm, 0.02, rng) for name in ATTRIBUTES},
            "any": heldout(arm, 0.015, rng),
        },
        "votes": votes(ARM_VOTES[arm], rng),
        "kl": {
            "per_token": KL[arm] + float(rng.normal(0, 0.0015)),
            "se": 0.0011,
            "k3": KL[arm],
            "n_tokens": 18_000,
        },
        "theta": {
            name: {
                "level": float(learned[:, j].mean()),
                "correlation": correlation(learned[:, j], theta[:, j]),
            }
            for j, name in enumerate(ATTRIBUTES)
        },
    }
    if planted:
        readouts["ceiling"] = votes(CEILING, rng)
        readouts["votes_minus_ceiling"] = minus(readouts["votes"], readouts["ceiling"])
        write_planted(folder, annotators, theta)
    (folder / "readouts.json").write_text(json.dumps(readouts))
    write_log(folder, learned.mean(axis=0), rng)
    write_bias(folder, arm, annotators, learned)
    write_environment(folder)
    settings = {
        "steps": 1000,
        "beta": 0.1,
        "learning_rate": 5e-4,
        "arms": ["dpo", "pooled"],
        "output_dir": "/home/ada/runs",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def learned_theta(arm: str, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if arm == "dpo":
        return np.zeros_like(theta)
    mean = np.broadcast_to(theta.mean(axis=0) * 0.9, theta.shape)
    if arm == "pooled":
        return mean.copy()
    return mean + 0.85 * (theta - theta.mean(axis=0)) + rng.normal(0, 0.3, theta.shape)


def rates(values, se: float) -> dict:
    return {name: {"rate": float(value), "se": se} for name, value in zip(ATTRIBUTES, values, strict=True)}


def sampled(values) -> dict:
    cells = {
        n: {"rate": float(v), "low": float(v) - 0.06, "high": float(v) + 0.06, "n": 250}
        for n, v in zip(ATTRIBUTES, values, strict=True)
    }
    return {"n": 300, "signed": 0.83, "ended": 0.9, **cells}


def heldout(arm: str, spread: float, rng: np.random.Generator) -> dict:
    same, gap = 0.66, {"dpo": 0.12}.get(arm, 0.005) + float(rng.normal(0, 0.01))
    return {
        "same": same,
        "cross": same + gap,
        "gap": gap,
        "n_same": 5000,
        "n_cross": 3000,
        "gap_low": gap - 2 * spread,
        "gap_high": gap + 2 * spread,
    }


def votes(levels, rng: np.random.Generator) -> dict:
    found = {}
    for name, level in zip(ATTRIBUTES, levels, strict=True):
        found[name] = {
            group: {
                "accuracy": level + offset + float(rng.normal(0, 0.006)),
                "n": 3000 if group == "all" else 1000,
                "se": 0.008,
            }
            for group, offset in CLASS_OFFSETS.items()
        }
    return found


def minus(own: dict, ceiling: dict) -> dict:
    def cell(name: str, group: str) -> dict:
        apart = own[name][group]["accuracy"] - ceiling[name][group]["accuracy"]
        return {
            "difference": apart,
            "se": 0.007,
            "low": apart - 0.014,
            "high": apart + 0.014,
            "n": own[name][group]["n"],
        }

    return {name: {group: cell(name, group) for group in row} for name, row in own.items()}


def correlation(learned: np.ndarray, planted: np.ndarray) -> float | None:
    return None if np.ptp(learned) < 1e-9 else float(np.corrcoef(learned, planted)[0, 1])


def write_log(folder: Path, ends: np.ndarray, rng: np.random.Generator, n_steps: int = 1000) -> None:
    steps = np.arange(1, n_steps + 1)
    loss = 0.693 - 0.12 * (1 - np.exp(-steps / 250)) + rng.normal(0, 0.02, n_steps)
    lines = []
    for i, step in enumerate(steps):
        line = {
            "step": int(step),
            "loss": round(float(loss[i]), 5),
            "rewards/margins": round(float(step / n_steps), 4),
        }
        line |= {
            f"bias/theta/{n}": float(end * (1 - np.exp(-step / 180)))
            for n, end in zip(ATTRIBUTES, ends, strict=True)
        }
        lines.append(json.dumps(line))
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def write_bias(folder: Path, arm: str, annotators, learned: np.ndarray) -> None:
    parts = {"dpo": [], "pooled": ["mean"], "shared_mean": ["mean", "deviation"]}[arm]
    mean = learned.mean(axis=0)
    tensors = {"mean": mean, "deviation": learned - mean}
    content = {
        "format": 1,
        "attributes": list(ATTRIBUTES),
        "parts": parts,
        "annotators": [name for name, _ in annotators],
        "annotator_class": [group for _, group in annotators],
        "extra": {
            "variant": arm if parts else "none",
            "attributes": [
                {"type": "signature_name", "name": n, "names": ["Emily", "Aisha"]} for n in ATTRIBUTES
            ],
            "data": "3f9a" * 16,
            "beta": 0.1,
            "first_margin": {"mean": 3e-8, "difference": 3e-7, "tolerance": 1e-5},
        },
    }
    (folder / "bias.json").write_text(json.dumps(content))
    shape = {"fixed": np.zeros_like(learned), "mask": np.ones(len(learned))}
    kept = {name: tensors[name] for name in parts} | shape
    save_file({name: values.astype(np.float32) for name, values in kept.items()}, folder / "bias.safetensors")


def write_planted(folder: Path, annotators, theta: np.ndarray) -> None:
    rows = [
        {"pseudonym": p, "annotator_class": c, "theta": row.tolist()}
        for (p, c), row in zip(annotators, theta, strict=True)
    ]
    (folder / "planted.json").write_text(json.dumps({"attributes": list(ATTRIBUTES), "annotators": rows}))


def write_environment(folder: Path) -> None:
    packages = {"ba-dpo": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "numpy": "2.4.6"}
    content = {"python": "3.11.7", "platform": "Linux x86_64", "packages": packages}
    (folder / "environment.json").write_text(json.dumps(content))
