"""Anchor a policy's attribute rates at targets, at sampling time or in training, and say what else moved."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from badpo.anchoring.editors import (
    CounterfactualEditor,
    LongAnswers,
    MarkdownStrip,
    WordSwap,
    pool_signatures,
)
from badpo.data.files import locked
from badpo.data.problems import ConfigError, did_you_mean
from badpo.experiments.anchor_bench import Anchor, Bench
from badpo.experiments.anchor_files import AnchorFolder, require_own_folder
from badpo.experiments.anchor_sample import sample_mode
from badpo.experiments.anchor_source import AnchorSource
from badpo.experiments.anchor_train import keep_lines, train_mode
from badpo.experiments.run import Progress

VERSION = 1  # of what an anchor does; a result of another one is made again


def editor_for(attributes: Sequence[str], words: Sequence[tuple[str, str]] = ()) -> CounterfactualEditor:
    """The editor of some attributes: signatures of the pool, Markdown, or words of one's own."""
    if words:
        return WordSwap(attributes[0], words)
    if list(attributes) == ["length"]:
        # the number of words is that of the source's own answers, once there are some
        return LongAnswers(math.nan)
    editors = (pool_signatures(), MarkdownStrip())
    for editor in editors:
        names = [attribute.name for attribute in editor.attributes]
        if all(name in names for name in attributes):
            return editor
    known = [attribute.name for editor in editors for attribute in editor.attributes]
    unknown = [name for name in attributes if name not in known]
    if not unknown:
        raise ConfigError(f"{' and '.join(attributes)} need different editors; anchor one after the other")
    raise ConfigError(
        f'nothing exchanges "{unknown[0]}" in an answer.{did_you_mean(unknown[0], known)} There are editors for '
        f"{', '.join(known)}; for words of your own give pairs with --word, as in --word color=colour"
    )


def anchor_run(source: AnchorSource, anchor: Anchor, mode: str, out: Path, progress: Progress) -> dict:
    """Anchor a source and measure it, unless ``out`` holds that result; write ``out/anchor.json``.

    A command that was killed goes on from its last finished round. What stood in ``out`` stays until the result is
    whole.

    Parameters
    ----------
    source : AnchorSource
    anchor : Anchor
    mode : "sample" or "train"
        ``sample`` leaves the policy as it is and writes the shift to sample with; ``train`` writes ``out/model``.
    out : Path
    progress : function of (what is being done, share done of it)

    Returns
    -------
    dict
        {attribute: {asked, before, achieved, ci_low, ci_high, c, shift, rounds}, mode, converged, reason, prompts,
        moved}; ``exact`` and ``how`` of ``sample``, ``asked_shift`` of each attribute of ``train``.

    Raises
    ------
    ConfigError
        A target that cannot be reached, such as one of an attribute that is never produced; ``out`` holds something
        else; another process works on it.
    DataError
        Too few answers that can be edited.
    """
    require_own_folder(out, source.given)
    with locked(out):
        folder = AnchorFolder(out, anchor_key(source, anchor, mode))
        result = folder.finished() or make_anchor(Bench(source, anchor, progress), mode, folder)
        if mode == "train":
            # also of a result that is there: a command that was killed may not have come so far
            keep_lines(source, anchor, result)
    progress("done", 1.0)
    return result


def make_anchor(bench: Bench, mode: str, folder: AnchorFolder) -> dict:
    """Make the result of an anchor and put it into its folder."""
    result, model = (sample_mode(bench), None) if mode == "sample" else train_mode(bench, folder)
    folder.finish(result, model)
    return result


def anchor_key(source: AnchorSource, anchor: Anchor, mode: str) -> str:
    """Of everything that decides a result."""
    prompts = source.prompts
    facts = {
        "version": VERSION,
        "mode": mode,
        "policy": source.policy_key,
        "reference": source.reference_key,
        "prompts": [prompts.fresh, prompts.find, prompts.report],
        "held_out": None if source.held_out is None else source.held_out.fingerprint(),
        "stage": asdict(source.stage),
        "decoding": asdict(source.decoding),
        "editor": anchor.editor.config,
        "targets": dict(anchor.targets),
        "limits": [anchor.tolerance, anchor.rounds],
        "seed": anchor.seed,
        "judge": anchor.judge,
        "lines": source.lines is not None,
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
