"""Runs of a suite that are anchored from its other runs, by the offset stage of `badpo anchor`."""

from __future__ import annotations

from pathlib import Path

from badpo.anchoring.editors import pool_signatures
from badpo.data.files import RUN_SEAL
from badpo.data.problems import ConfigError
from badpo.experiments.anchor import anchor_key, make_anchor
from badpo.experiments.anchor_bench import Anchor, Bench
from badpo.experiments.anchor_files import AnchorFolder
from badpo.experiments.anchor_source import AnchorSource, Prompts, run_source
from badpo.experiments.evaluate import load_bias, require_undamaged
from badpo.experiments.run import Progress
from badpo.experiments.suite_materials import N_EVALUATION
from badpo.experiments.suite_parts import Offset
from badpo.experiments.suite_settings import Scale
from badpo.experiments.suite_stages import CorpusStage
from badpo.objective.bias import BiasTerm


def anchored_run(
    offset: Offset,
    seed: int,
    stage: CorpusStage,
    scale: Scale,
    data: Path | None,
    folder: Path,
    progress: Progress,
) -> BiasTerm:
    """Anchor a run unless ``folder`` holds that result; the bias term is that of the source.

    No calibration lines are kept: what a run comes out as would depend on those that were there before it.

    Raises
    ------
    ConfigError
        The source is not there or is damaged, the scale has no fresh prompts, the corpus no signatures, or the folder
        holds something else.
    """
    of = folder.parent / f"{offset.source.name}-s{seed}"
    if not (of / RUN_SEAL).exists():
        raise ConfigError(f"{of} holds no finished run, from which {folder.name} is anchored; train it first")
    require_undamaged(of)
    source = _source(of, stage, scale, data)
    names = stage.held_out.attribute_names
    anchor = Anchor(pool_signatures(), dict.fromkeys(names, offset.target), rounds=offset.rounds, seed=seed)
    place = AnchorFolder(folder, anchor_key(source, anchor, "train"))
    if place.finished() is None:
        if (folder / RUN_SEAL).exists():
            raise ConfigError(
                f"{folder} holds another anchor than the one that is asked for, or a damaged one; remove it to have it "
                "made again, or give another --out"
            )
        bench = _bench(source, anchor, progress)
        make_anchor(bench.at(anchor.targets, anchor.rounds), "train", place)
    return load_bias(of)


def _source(folder: Path, stage: CorpusStage, scale: Scale, data: Path | None) -> AnchorSource:
    if scale.fresh_prompts is None or stage.corpus.kind != "signed":
        raise ConfigError(
            f"the scale {scale.name} has no fresh prompts for {stage.corpus.folder} to anchor with"
        )
    fresh = scale.fresh_prompts(stage.corpus, data)
    n = min(N_EVALUATION, len(fresh) // 5)
    prompts = Prompts(list(fresh[n:]), list(fresh[:n]), list(stage.prompts), "the suite's corpus")
    return run_source(folder, stage, prompts, lines=None)


# The last source alone: its answers are shared by all of its targets, and its model is large.
_BENCHES: dict[tuple, Bench] = {}


def _bench(source: AnchorSource, anchor: Anchor, progress: Progress) -> Bench:
    place = (source.given, source.policy_key, source.reference_key, anchor.seed)
    if place not in _BENCHES:
        _BENCHES.clear()
        bench = Bench(source, anchor, progress)
        # sampled before the targets share it
        progress(f"{bench.pairs.n_edited} of {bench.pairs.n_answers} answers to train on", 0.0)
        _BENCHES[place] = bench
    return _BENCHES[place]
