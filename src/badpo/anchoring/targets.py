"""Bring a policy's attribute rates to target rates by sampling or training, and measure the side effects."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from badpo.anchoring.attribute_rates import (
    Behavior,
    Changes,
    RateTable,
    answer_rates,
    compare_behavior,
    redraw_names,
    rejection_sample,
    signature_rates,
)
from badpo.anchoring.editors import (
    CounterfactualEditor,
    MarkdownStrip,
    SignatureSwap,
    WordSwap,
    measure_cell,
)
from badpo.anchoring.offset_stage import (
    FEWEST_ANSWERS,
    KeptAnswer,
    OffsetPairs,
    calibrate,
    find_kept_positions,
    offset_pairs,
    train_offset,
)
from badpo.anchoring.source import AnchorSource
from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL, Json, locked, run_damage, write_json, write_seal
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, counted, did_you_mean
from badpo.readouts.generation import Generation, sample
from badpo.readouts.heldout import response_log_ratios
from badpo.readouts.name_rates import signature_contexts
from badpo.readouts.names import ask_to_sign
from badpo.readouts.sampled import (
    Figures,
    answer_logps,
    figures,
    finite_or_none,
    kl_per_token,
    prompt_numbers,
)
from badpo.runs.run import BEGUN, Progress, Ticker, read_json
from badpo.theory import Floats, Ints
from badpo.theory.summaries import cluster_mean
from badpo.theory.tilt import shift_to_targets
from badpo.training.checkpoints import whole_folder
from badpo.training.encoding import encode_comparisons, encode_prompts
from badpo.training.reference import ReferenceCache, compute_weights_key

# Content of ``anchor.json``: a row for each attribute under its name, and facts about the method and the policy.
AnchorResult = Json


@contextmanager
def raising_config_errors() -> Iterator[None]:
    """Inside of this context, convert every `ValueError` to a `ConfigError`."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


# Number of answers to each report prompt.
# With four answers to each prompt, the share of signed answers has a standard error of one or two percent.
ANSWERS_EACH = 4
# Maximum number of draws for one prompt in rejection sampling.
# If all draws are rejected, the answer of the source policy is kept.
MOST_DRAWS = 64
# Minimum share of signed answers; with a lower share, the rates of names would describe too few answers.
FEWEST_SIGNED = 0.05
VERSION = 3  # version of the method; results from another version are computed again


@dataclass(frozen=True)
class Anchor:
    """Target rates for some of an editor's attributes; the shift of the other attributes is zero.

    ``tolerance`` is the largest accepted distance of a rate from its target, and ``rounds`` the maximum number of
    offset stages.
    """

    editor: CounterfactualEditor
    targets: Mapping[str, float]
    tolerance: float = 0.03
    rounds: int = 4
    seed: int = 42

    def whole_shift(self, shift: Floats) -> Floats:
        """Extend a shift of the anchored attributes to all attributes of the editor; the added entries are zero."""
        shifts = dict(zip(self.targets, shift.tolist(), strict=True))
        return np.array([shifts.get(attribute.name, 0.0) for attribute in self.editor.attributes])

    def explain_misses(self, where: str, rates: Sequence[float | None], remedy: str) -> str:
        """Describe the rates that miss their targets, and where they were measured; empty if no rate misses."""
        missed = []
        for (name, target), rate in zip(self.targets.items(), rates, strict=True):
            if rate is None or not np.isfinite(rate):
                missed.append(f"the rate of {name} could not be measured")
            elif abs(rate - target) > self.tolerance:
                missed.append(f"the rate of {name} is {rate:.3f}, but its target is {target:g}")
        if not missed:
            return ""
        rates_text = ", ".join(missed)
        return f"{where}, {rates_text} (tolerance {self.tolerance:g}); {remedy}, or accept a wider tolerance"


def editor_for(attributes: Sequence[str], words: Sequence[tuple[str, str]] = ()) -> CounterfactualEditor:
    """Return the editor for attributes: names in signatures, Markdown, or the user's word pairs."""
    if words:
        return WordSwap(attributes[0], words)
    editors = {
        attribute.name: editor
        for editor in (SignatureSwap(), MarkdownStrip())
        for attribute in editor.attributes
    }
    if unknown := [name for name in attributes if name not in editors]:
        raise ConfigError(
            f'no editor can change "{unknown[0]}" in an answer.{did_you_mean(unknown[0], [*editors])} Editors '
            f"exist for {', '.join(editors)}; to change other words, give --word, such as --word color=colour"
        )
    first, *others = {editors[name] for name in attributes}
    if others:
        raise ConfigError(
            f"{' and '.join(attributes)} need different editors; anchor these attributes one after the other"
        )
    return first


def anchor_run(
    source: AnchorSource, anchor: Anchor, mode: str, out: Path, progress: Progress
) -> AnchorResult:
    """Anchor a source policy, measure it and write ``out/anchor.json``; if the result already exists, return it.

    If a previous command was killed, the function continues after the last finished training round. The previous
    content of ``out`` is kept until the new result is complete. The mode ``sample`` does not change the policy and
    writes the shift to use for sampling. The mode ``train`` writes a new policy to ``out/model``.

    Raises
    ------
    ConfigError
        If a target cannot be reached, for example because the policy never produces the attribute, if ``out``
        contains other files, or if another process uses ``out``.
    DataError
        If too few answers can be edited.
    """
    require_own_folder(out, source.place)
    with locked(out):
        folder = AnchorFolder(out, anchor_key(source, anchor, mode))
        result = folder.read_result() or make_anchor(Bench(source, anchor, progress), mode, folder)
    progress("done", 1.0)
    return result


def anchor_key(source: AnchorSource, anchor: Anchor, mode: str) -> str:
    """Return a hash of all inputs that determine the result of an anchor."""
    facts = {
        **vars(anchor),
        "editor": anchor.editor.config,
        "version": VERSION,
        "mode": mode,
        "policy": source.policy_key,
        "reference": source.reference_key,
        "prompts": [source.prompts.fresh, source.prompts.find, source.prompts.report],
        "held_out": None if source.held_out is None else source.held_out.fingerprint(),
        "stage": asdict(source.stage),
        "decoding": asdict(source.decoding),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class Bench:
    """A source policy, its encoded prompts, and its measurements before anchoring."""

    def __init__(self, source: AnchorSource, anchor: Anchor, progress: Progress):
        self.source, self.anchor, self.progress = source, anchor, progress
        self.is_signed = isinstance(anchor.editor, SignatureSwap)
        progress("measuring the source", 0.0)
        self.policy = source.read().eval()
        prompts = source.prompts
        self.ids = {
            "report": self.prompt_ids(prompts.report),
            "find": self.prompt_ids(prompts.find),
        }
        # in both lists, element i is the prompt of answer i in a `Behavior`
        self.reported_ids = self.ids["report"] * ANSWERS_EACH
        self.reported_prompts = prompts.report * ANSWERS_EACH
        self.contexts: dict[str, list[list[int]]] = {}
        for part, ids in self.ids.items() if self.is_signed else ():
            # the contexts are the reference's answers, if there is a reference, so all anchors of a run share contexts
            answers = self.answers(source.reference or self.policy, ids, seed=0)
            self.contexts[part] = signature_contexts(answers, source.tokenizer)
        self.before = self.behavior(self.policy)

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """Return the prompts; if signatures are anchored, add a request for a signature to each prompt."""
        return [ask_to_sign(prompt) for prompt in prompts] if self.is_signed else list(prompts)

    def prompt_ids(self, prompts: Sequence[str]) -> list[Ints]:
        """Return the token ids of prompts."""
        stage, texts = self.source.stage, self.texts(prompts)
        return encode_prompts(texts, self.source.tokenizer, stage.encoding, stage.max_prompt_length)

    @raising_config_errors()
    def answers(
        self, policy: PreTrainedModel, prompt_ids: Sequence[Ints], seed: int | None = None
    ) -> list[Generation]:
        """Sample one answer to each prompt."""
        decoding = vars(self.source.decoding)
        seed = self.anchor.seed if seed is None else seed
        return sample(policy, self.source.tokenizer, prompt_ids, **decoding, seed=seed)

    @raising_config_errors()
    def rates(self, policy: PreTrainedModel, part: str) -> RateTable:
        """Measure the rates of the anchored attributes on the prompts of ``part``, which is "find" or "report"."""
        editor = self.anchor.editor
        if isinstance(editor, SignatureSwap):
            table = signature_rates(policy, self.source.tokenizer, self.contexts[part], editor)
        else:
            answers = self.answers(policy, self.ids[part])
            table = answer_rates(answers, editor, range(len(answers)))
        return table.select([*self.anchor.targets])

    @raising_config_errors()
    def exact_shift(self, table: RateTable) -> Floats:
        """Compute the shift that brings the rates of a table to their targets, in closed form."""
        targets = list(self.anchor.targets.values())
        return shift_to_targets(table.log_probs, table.indicators, targets, table.attributes)

    def attribute_rows(
        self, before: RateTable, after: RateTable, shift: Floats, **more: float
    ) -> dict[str, Figures]:
        """Return each attribute's target, rates and shift; if the rates are sampled, also return ``counted``."""
        if after.counted is not None:
            more["counted"] = after.counted
        columns = zip(self.anchor.targets.items(), before.rate, after.intervals(), shift, strict=True)
        return {
            name: figures(
                target=target,
                before=rate,
                achieved=interval.estimate,
                ci_low=interval.low,
                ci_high=interval.high,
                c=self.source.stage.beta * own_shift,
                shift=own_shift,
                **more,
            )
            for (name, target), rate, interval, own_shift in columns
        }

    def explain_few_signatures(self) -> str:
        """Explain that too few answers are signed to measure rates of names; return an empty string if enough are."""
        answers = self.before.answers
        n = sum(bool(self.anchor.editor.cells(answer.text)) for answer in answers)
        if not self.is_signed or n >= FEWEST_SIGNED * len(answers):
            return ""
        share = f"{n:,} of {len(answers):,} sampled answers ({n / len(answers):.1%})"
        return (
            f"{share} are signed with a name from the pool, but a target rate for names needs at least "
            f"{FEWEST_SIGNED:.0%}; anchor a policy that signs its answers on request, such as a policy trained on "
            "signed answers, or use --prompts with prompts that make the policy sign"
        )

    # -- behavior of a policy ----------------------------------------------------------------------------------

    def behavior(self, policy: PreTrainedModel) -> Behavior:
        """Measure a policy on the report prompts."""
        answers, source = self.answers(policy, self.reported_ids), self.source
        margins = None
        if source.reference is not None and source.held_out is not None:
            margins = self.margins(source.reference, policy, source.held_out)
        return self.behavior_of_answers(answers, answer_logps(policy, answers), margins)

    def behavior_of_answers(
        self,
        answers: Sequence[Generation],
        logps: Sequence[Floats],
        margins: Floats | None = None,
        margins_from: str = "measured",
    ) -> Behavior:
        """Compute a policy's KL divergences from the log-probabilities of its answer tokens."""
        decoding = self.source.decoding
        options = (decoding.temperature, decoding.top_p, prompt_numbers(answers))
        kl_source, kl_reference = (
            None if other is None else kl_per_token(logps, answer_logps(other, answers), *options)
            for other in (self.policy, self.source.reference)
        )
        return Behavior(answers, kl_source, kl_reference, margins, margins_from)

    def margins(
        self, reference: PreTrainedModel, policy: PreTrainedModel, judgments: Judgments
    ) -> Floats:
        """Compute the implicit margins of a policy against a reference."""
        source, stage = self.source, self.source.stage
        cache = ReferenceCache(source.cache, compute_weights_key(reference, "fp32"))
        limits = (stage.encoding, stage.max_length, stage.max_prompt_length)
        ratios = response_log_ratios(policy, reference, cache, judgments, source.tokenizer, *limits)
        return ratios.margins(stage.beta)

    def changes(self, after: Behavior) -> Changes:
        """Compare all metrics before and after anchoring."""
        source, editor = self.source, self.anchor.editor
        return compare_behavior(self.before, after, self.reported_prompts, editor, source.held_out)

    # -- training data of an offset stage --------------------------------------------------------------------

    @cached_property
    def training_answers(self) -> list[Generation]:
        """Answers of the source policy to the training prompts."""
        self.progress("sampling the source's own answers", 0.0)
        return self.answers(self.policy, self.prompt_ids(self.source.prompts.fresh))

    @cached_property
    def pairs(self) -> OffsetPairs:
        """Counterfactual pairs of the source's own answers."""
        prompts = self.texts(self.source.prompts.fresh)
        texts = [answer.text for answer in self.training_answers]
        fewest = max(FEWEST_ANSWERS, math.ceil(self.is_signed * FEWEST_SIGNED * len(texts)))
        pairs = offset_pairs(prompts, texts, self.anchor.editor, self.anchor.seed, fewest=fewest)
        self.progress(f"training on {pairs.n_edited} of {pairs.n_answers} answers", 0.0)
        return pairs

    @cached_property
    def kept(self) -> list[KeptAnswer]:
        """Answers of the source policy, with the positions at which training should keep next-token probabilities."""
        stage, rows = self.source.stage, self.pairs.train.comparisons
        lengths = (stage.max_length, stage.max_prompt_length)
        encoded = encode_comparisons(rows, self.source.tokenizer, stage.encoding, *lengths).pairs
        unedited = [self.training_answers[i] for i in self.pairs.unedited]
        kept = [find_kept_positions(answer.prompt_ids, answer.token_ids) for answer in unedited]
        # response a is the same in all pairs that were made from one answer
        for pairs in rows.groupby("prompt_id", sort=False).indices.values():
            prompt, answer = encoded[2 * pairs[0]]
            others = [encoded[2 * i + 1][1] for i in pairs]
            kept.append(find_kept_positions(prompt, answer, others))
        return kept

    def shift_on_pairs(self, policy: PreTrainedModel) -> dict[str, Figures]:
        """Measure a policy's shift of each attribute on held-out pairs, in log-odds."""
        held_out = self.pairs.held_out
        pair = held_out.votes["comparison"].to_numpy()
        shifts = self.margins(self.policy, policy, held_out)[pair] / self.source.stage.beta
        by_attribute = {}
        for name, column in zip(held_out.attribute_names, held_out.delta.T, strict=True):
            mean = cluster_mean((shifts * column)[column != 0], pair[column != 0])
            by_attribute[name] = figures(shift=mean.estimate, ci_low=mean.low, ci_high=mean.high)
        return by_attribute


# -- the folder of a result --------------------------------------------------------------------------------------

RESULT_FILE, ROUND_FILE = "anchor.json", "round.json"


def require_own_folder(out: Path, source: str) -> None:
    """Raise `ConfigError` if the result folder contains other files; the result would replace such files."""
    remedy = f"name a separate folder, such as {out.parent / f'{Path(source).name}-anchored'}"
    out_path, source_path = out.resolve(), Path(source).resolve()
    is_nested = out_path.is_relative_to(source_path) or source_path.is_relative_to(out_path)
    if source_path.exists() and is_nested:
        raise ConfigError(f"--out {out} and the source {source} share a folder; {remedy}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; {remedy}")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    if others := sorted(names - {RESULT_FILE, RUN_SEAL, "model"} if RESULT_FILE in names else names):
        raise ConfigError(f"--out {out} contains {others[0]}, which the result would replace; {remedy}")


class AnchorFolder:
    """The result folder of an anchor, and the work folder next to it, which contains the training rounds."""

    def __init__(self, out: Path, key: str):
        self.out, self._key = out, key
        self._work = out.with_name(f".{out.name}.anchoring")
        # cache of log-probabilities that all anchors of the source share
        self.cache = out.parent / "anchor_cache"

    def read_result(self) -> AnchorResult | None:
        """Return the result if the folder contains a complete result of this anchor, and None if not."""
        if read_json(self.out / RUN_SEAL).get("anchor") != self._key or run_damage(self.out):
            return None
        return read_json(self.out / RESULT_FILE)

    def begin(self, source: str) -> None:
        """Create the work folder; if it exists, keep training rounds of this anchor and delete all other rounds."""
        if read_json(self._work / BEGUN).get("anchor") != self._key:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            write_json(self._work / BEGUN, {"anchor": self._key, "source": source}, private=True)

    def round_folder(self, number: int) -> Path:
        """Return the run folder of a round."""
        return self._work / f"round-{number + 1}"

    def read_round(self, number: int, shift: list[float]) -> list[float | None] | None:
        """Return the rates of a round that finished with this shift; delete the folder of a round that did not."""
        measured = read_json(self.round_folder(number) / ROUND_FILE)
        if measured.get("shift") == shift:
            rates: list[float | None] = measured["rate"]
            return rates
        shutil.rmtree(self.round_folder(number), ignore_errors=True)
        return None

    def finish(self, result: AnchorResult, model: Path | None) -> None:
        """Replace the result folder with the new result and the new policy, and delete the training rounds."""
        with whole_folder(self.out) as new:
            new.mkdir(parents=True)
            if model is not None:
                shutil.copytree(model, new / "model")
            write_json(new / RESULT_FILE, result)
            files = [str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()]
            write_seal(new / RUN_SEAL, {"anchor": self._key}, files)
        shutil.rmtree(self._work, ignore_errors=True)


# -- the two modes -----------------------------------------------------------------------------------------------


def make_anchor(bench: Bench, mode: str, folder: AnchorFolder) -> AnchorResult:
    """Compute the result of an anchor, and write the result to the anchor's folder."""
    content, model = (sample_mode(bench), None) if mode == "sample" else train_mode(bench, folder)
    result = {
        **content,
        "source": bench.source.name,
        "mode": mode,
        "seed": bench.anchor.seed,
        "converged": not content["reason"],
        "prompts": bench.source.prompts.to_json(),
    }
    folder.finish(result, model)
    return result


@dataclass(frozen=True)
class TiltedSample:
    """Results for a policy that ``--mode sample`` tilted: its rates, the method of tilting, and its behavior."""

    rows: dict[str, Figures]
    is_exact: bool
    method: str
    behavior: Behavior


def sample_mode(bench: Bench) -> AnchorResult:
    """Compute the tilt in closed form on the prompts in ``find``, and measure the tilted policy on ``report``."""
    shift = bench.exact_shift(bench.rates(bench.policy, "find"))
    bench.progress("measuring the tilted policy", 0.5)
    tilted = (tilt_names if bench.is_signed else tilt_answers)(bench, shift)
    reason = bench.explain_few_signatures() or bench.anchor.explain_misses(
        "on the report prompts",
        [row["achieved"] for row in tilted.rows.values()],
        "use more prompts (--prompts)",
    )
    return {
        **tilted.rows,
        "reason": reason,
        "exact": tilted.is_exact,
        "method": tilted.method,
        "changes": bench.changes(tilted.behavior),
    }


def tilt_names(bench: Bench, shift: Floats) -> TiltedSample:
    """Tilt the policy's choice of names in signatures."""
    source, anchor, editor = bench.source, bench.anchor, bench.anchor.editor
    assert isinstance(editor, SignatureSwap)
    before = bench.rates(bench.policy, "report")
    after = replace(before, log_probs=before.log_probs + before.indicators @ shift)
    answers, gains = redraw_names(
        bench.policy,
        source.tokenizer,
        bench.before.answers,
        editor,
        anchor.whole_shift(shift),
        anchor.seed,
    )
    logps = answer_logps(bench.policy, answers)
    for values, gain in zip(logps, gains, strict=True):
        values[-1] += gain
    method = (
        "the policy's probabilities of all names are reweighted in closed form, and the name in each signature is "
        "drawn again; the rest of the answer does not change"
    )
    margins = tilted_margins(bench, shift)
    behavior = bench.behavior_of_answers(answers, logps, margins, "closed form")
    return TiltedSample(bench.attribute_rows(before, after, shift, rounds=0), True, method, behavior)


def tilted_margins(bench: Bench, shift: Floats) -> Floats | None:
    """Compute the tilted policy's margins on held-out comparisons in closed form: u + c (g_a - g_b)."""
    margins, held_out = bench.before.margins, bench.source.held_out
    if margins is None or held_out is None:
        return None
    a, b = (
        np.array(
            [measure_cell(bench.anchor.editor, plain_text(text)) for text in held_out.comparisons[side]]
        )
        for side in ("response_a", "response_b")
    )
    return np.asarray(margins + bench.source.stage.beta * (a - b) @ bench.anchor.whole_shift(shift))


def tilt_answers(bench: Bench, shift: Floats) -> TiltedSample:
    """Tilt the policy's whole answers by rejection sampling."""
    anchor, editor, ids = bench.anchor, bench.anchor.editor, bench.reported_ids

    def draw(prompts: Sequence[int], number: int) -> list[Generation]:
        return bench.answers(bench.policy, [ids[i] for i in prompts], seed=anchor.seed + 1 + number)

    accepted, acceptance = rejection_sample(
        draw,
        lambda answer: measure_cell(editor, answer.text) if editor.cells(answer.text) else None,
        anchor.whole_shift(shift),
        len(ids),
        MOST_DRAWS,
        anchor.seed,
    )
    # if all draws for a prompt are rejected, keep the source's answer; the result counts these prompts
    own, n_without = bench.before.answers, accepted.count(None)
    answers = [own[i] if answer is None else answer for i, answer in enumerate(accepted)]
    prompts = list(range(len(bench.ids["report"]))) * ANSWERS_EACH
    start, table = (
        answer_rates(sampled, editor, prompts).select([*anchor.targets]) for sampled in (own, answers)
    )
    exactness = "the tilt is exact at the temperature and top-p with which the answers were sampled"
    if n_without:
        exactness = (
            f"the tilt is exact except for {n_without} of {len(answers)} answers: all {MOST_DRAWS} draws were "
            "rejected, so the policy's own answer was kept"
        )
    method = (
        f"whole answers are drawn until one is accepted (acceptance rate: {acceptance:.3f}); {exactness}"
    )
    rows = bench.attribute_rows(
        start, table, shift, acceptance_rate=acceptance, without=n_without, rounds=0
    )
    behavior = bench.behavior_of_answers(answers, answer_logps(bench.policy, answers))
    return TiltedSample(rows, n_without == 0, method, behavior)


def train_mode(bench: Bench, folder: AnchorFolder) -> tuple[AnchorResult, Path]:
    """Train offset stages on the source's own answers; calibrate on the prompts in ``find``, and measure on ``report``.

    If ``folder`` contains a finished round, the function does not train this round again.
    """
    anchor, source = bench.anchor, bench.source
    find = bench.rates(bench.policy, "find")
    require_teachable(bench, find)
    # build the pairs first: if too few answers can be edited, an error is raised before the work folder exists
    n_pairs = bench.pairs.train.n_comparisons
    folder.begin(source.name)
    rounds, best = calibrate(
        find,
        list(anchor.targets.values()),
        lambda shift, number: train_round(bench, folder, shift, number),
        anchor.tolerance,
        anchor.rounds,
    )
    model = folder.round_folder(best) / "model"
    policy = source.read(model).to(bench.policy.device).eval()
    bench.progress("measuring the anchored policy", 0.5)
    start, reached = (bench.rates(one, "report") for one in (bench.policy, policy))
    rows = bench.attribute_rows(start, reached, rounds[0].intended, rounds=len(rounds))
    for row, intended in zip(rows.values(), rounds[best].intended.tolist(), strict=True):
        row["intended_shift"] = intended
    result = {
        **rows,
        "reason": anchor.explain_misses(
            f"in the best of {counted(len(rounds), 'round')}",
            rounds[best].rate.tolist(),
            "allow more rounds, more steps or a higher learning rate",
        ),
        "answers": bench.pairs.n_answers,
        "edited_answers": bench.pairs.n_edited,
        "pairs": n_pairs,
        "calibration": [
            {
                name: list(map(finite_or_none, getattr(one_round, name)))
                for name in ("intended", "achieved", "rate")
            }
            for one_round in rounds
        ],
        "held_out_pairs": bench.shift_on_pairs(policy),
        "changes": bench.changes(bench.behavior(policy)),
    }
    return result, model


def require_teachable(bench: Bench, before: RateTable) -> None:
    """Before training, raise an error if no tilt reaches a target, or if no edit can add an attribute."""
    anchor, shift = bench.anchor, bench.exact_shift(before)
    if isinstance(anchor.editor, MarkdownStrip) and shift[0] > 0:
        name = before.attributes[0]
        raise ConfigError(
            f"{name}: the source's rate is {before.rate[0]:.3f} and the target is {anchor.targets[name]:g}, but badpo "
            "can only remove Markdown from answers, so training cannot raise the rate; use --mode sample or a lower "
            "target"
        )


def train_round(bench: Bench, folder: AnchorFolder, shift: Floats, number: int) -> Floats:
    """Read the rates of a finished round, or train an offset stage and measure its rates on the prompts in ``find``."""
    rate = folder.read_round(number, shift.tolist())
    if rate is None:
        source = bench.source
        policy = train_offset(
            source.read(),
            bench.policy,
            source.tokenizer,
            bench.pairs.train,
            bench.kept,
            bench.anchor.whole_shift(shift),
            source.stage,
            bench.anchor.seed,
            folder.round_folder(number),
            folder.cache,
            [Ticker(f"offset stage {number + 1}", bench.progress)],
        )
        rate = list(map(finite_or_none, bench.rates(policy, "find").rate))
        # write the file of the round last, so that it marks a complete round
        write_json(folder.round_folder(number) / ROUND_FILE, {"shift": shift.tolist(), "rate": rate})
    return np.array(rate, float)
