"""What is read from a run of a suite, once, and kept in its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from badpo.data.files import RUN_SEAL, resealed
from badpo.experiments.name_readouts import name_readouts, name_tokens
from badpo.experiments.progress import Progress
from badpo.experiments.run_keys import weights_of
from badpo.experiments.signed_readouts import answers, held_out_readouts, planted
from badpo.experiments.suite_stages import Stage
from badpo.objective.bias import BiasTerm
from badpo.readouts.generation import Generation
from badpo.readouts.judge import judge_answers, load_judge
from badpo.readouts.sampled import attribute_values, mean_tokens
from badpo.readouts.strips import strip_markdown, strip_signatures
from badpo.readouts.style_rates import style_rates
from badpo.training.model_files import load_adapter, load_weights
from badpo.training.run_folder import write_json

VERSION = 2  # of what is measured; another one measures finished runs again
JUDGE_TOKENS = 2048  # the paper's limit; what is over it is cut from the answer, not from the end of text


def measure_run(
    folder: Path, stage: Stage, seed: int, bias: BiasTerm | None, judge: str | None, progress: Progress
) -> dict:
    """Every readout of the policy in ``folder``, from ``readouts.json`` where that is of the same policy and settings.

    Parameters
    ----------
    folder : Path
        A run folder; the reference's own for the reference.
    stage : Stage
    seed : int
        Seed of the sampled answers.
    bias : BiasTerm or None
        None for the reference.
    judge : str or None
        A reward model's folder or name on the Hub.
    progress : function
    """
    key = _key(folder, stage, seed, judge)
    kept = kept_readouts(folder)
    if kept.get("measured") == key:
        return kept
    progress(f"{folder.parent.name}/{folder.name} readouts", 0.0)
    policy = load_trained(folder, stage.folder).to(stage.model.device)
    settings = stage.settings
    written = answers(policy, stage.tokenizer, stage.prompt_ids, settings, seed)
    readouts = {"arm": folder.name.rsplit("-s", 1)[0], "seed": seed, "measured": key}
    readouts |= {"version": VERSION, "tokens": mean_tokens(written).to_json()}
    readouts |= _attribute_readouts(policy, written, stage, seed)
    if bias is not None:
        readouts |= held_out_readouts(policy, written, stage, settings, seed, bias)
    elif stage.corpus.kind == "signed":
        readouts["name_tokens"] = name_tokens(stage.tokenizer)
    if judge is not None:
        strip = strip_signatures if stage.corpus.kind == "signed" else strip_markdown
        reward = load_judge(judge)
        reward.model.to(stage.model.device)
        texts = [answer.text for answer in written]
        scored = judge_answers(reward, stage.prompts, texts, strip, max_length=JUDGE_TOKENS)
        readouts["judge"] = scored.to_json()
    with resealed(folder, ["planted.json", "readouts.json"]):
        if bias is not None and stage.planted is not None:
            write_json(folder / "planted.json", planted(stage))
        write_json(folder / "readouts.json", readouts)
    progress(f"{folder.parent.name}/{folder.name} readouts", 1.0)
    return readouts


def kept_readouts(folder: Path) -> dict:
    """The content of ``readouts.json``; empty where there is none that can be read."""
    return kept_json(folder / "readouts.json")


def kept_json(path: Path) -> dict:
    """The content of a JSON file of a run; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def kept_facts(folder: Path) -> dict:
    """What decided the run in a folder, finished or begun; empty where that cannot be read."""
    for name in (RUN_SEAL, "begun.json"):
        facts = kept_json(folder / name).get("facts")
        if isinstance(facts, dict):
            return facts
    return {}


def load_trained(folder: Path, reference: Path):
    """The trained policy; an adapter is put on the reference that it was trained on."""
    if not (folder / "model" / "adapter_config.json").exists():
        return load_weights(folder / "model")
    policy = load_adapter(load_weights(reference / "model"), folder / "model")
    policy.adapter_folder = folder / "model"  # for what reads the policy's files
    return policy


def _attribute_readouts(policy, written: list[Generation], stage: Stage, seed: int) -> dict:
    """How often the policy shows the attributes: names by probability and in samples, or Markdown."""
    if stage.corpus.kind == "signed":
        return name_readouts(policy, written, stage, seed)
    found = {}
    for attribute in stage.held_out.attributes:
        if attribute.scope == "response":
            values = attribute_values(attribute, list(stage.prompts), written)
            found[attribute.name] = style_rates(values, written, stage.written).to_json()
    return found


def _key(folder: Path, stage: Stage, seed: int, judge: str | None) -> str:
    settings = stage.settings
    sampling = [settings.max_new_tokens, settings.temperature, settings.top_p, settings.max_prompt_length]
    facts = [
        VERSION,
        weights_of(folder / "model"),
        weights_of(stage.folder / "model"),
        list(stage.prompts),
        sampling,
        seed,
        judge,
        stage.held_out.fingerprint(),
    ]
    if settings.generate_with != "transformers":
        facts.append(settings.generate_with)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
