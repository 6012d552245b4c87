"""Define the suites: the tables of the paper, with the runs, readouts and intervals of each table.

A suite consists of data only. The folder name of a run contains its settings and not its suite, so suites share runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from badpo.data.problems import ConfigError, did_you_mean
from badpo.results.formatting import PLACEBO

# Meaning of the number after the plus-minus sign in a cell:
# "t95": half the width of Student's 95 % confidence interval over seeds; "sd": one standard deviation over seeds;
# "mean": no number after the mean; "prompts95": half the width of the 95 % confidence interval clustered by prompt;
# "none": the value in the cell is not a mean over seeds.
Spread = Literal["t95", "sd", "mean", "prompts95", "none"]


@dataclass(frozen=True)
class Corpus:
    """Votes, start model and reference that the runs of a panel share."""

    kind: Literal["signed", "style"]
    model: Literal["small", "large", "other", "demo"] = "small"
    data_seed: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that contains the runs on this corpus."""
        if self.model == "demo":
            return "."  # the same for all data seeds
        return self.kind if self.model == "small" else f"{self.kind}-{self.model}"


@dataclass(frozen=True)
class Offset:
    """Settings of an offset stage, which anchors a finished run by training on the run's own answers."""

    source: Condition
    target: float
    rounds: int


@dataclass(frozen=True)
class Condition:
    """The settings of a training run, except its corpus and its seed.

    Attributes
    ----------
    arm : str
        A key of `badpo_paper.arms.ARMS`.
    declared : str
        The declared attribute. If empty, all attributes of the corpus are declared.
    variant : str
        Name that distinguishes the condition from other conditions with the same arm.
    rate_factor : float
        Factor of the policy's learning rate.
    overrides : tuple of (str, value)
        Recipe keys that differ from the scale's.
    offset : Offset or None
        If given, the run is not trained from the reference but anchored from a run of the same arm.
    """

    arm: str
    declared: str = ""
    variant: str = ""
    rate_factor: float = 1.0
    overrides: tuple[tuple[str, bool | float | str], ...] = ()
    offset: Offset | None = None

    @property
    def name(self) -> str:
        """Name of the run folder without the seed, for example ``pooled-length``."""
        return "_".join(filter(None, (self.arm, self.variant))) + f"-{self.declared}" * bool(
            self.declared
        )


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    label : str
        Label of the row in the table, and key of the paper's numbers.
    condition : Condition
    seeds : {"all", "first", "one"}
        ``first``: a control that the paper ran at the first seed only. A scale can run a control at all seeds
        (``control_seeds`` of `badpo_paper.settings.Scale`). ``one``: every scale runs the row at the first seed only.
    against : str
        Condition whose shift at the same seed is the reference value of the removed share.
    """

    label: str
    condition: Condition
    seeds: Literal["all", "first", "one"] = "all"
    against: str = "dpo"


# Columns of a table: label -> source of the column's values. The file of the paper's numbers uses the same labels.
# A source is a place in ``readouts.json``, with the keys joined by dots, or has one of the following forms:
# ``shift:PLACE`` is the shift from the reference.
# ``removed:PLACE`` is the removed share of another condition's shift from the reference.
# ``added:PLACE`` is the removed share of another condition's shift from the placebo, which the votes' bias caused.
# ``amplified:PLACE`` is the shift in standard deviations over seeds.
# ``distance:PLACE`` is the distance to the reference in log-odds.
# ``log:NAME`` is a metric of the last training step.
# ``type:annotators.0`` and ``type:weights.0`` describe the EM-DPO type with the most annotators, ``.1`` the next type.
# ``anchor:PLACE`` is a place in ``anchor.json``.
Columns = Mapping[str, str]
# Beginning of a column's source -> number of decimals; columns of other sources have three decimals.
# A negative number means a percentage: -1 has no decimals, and -2 has one decimal.
PERCENT, PERCENT1 = -1, -2
PLACES = {
    "removed:": PERCENT,
    "added:": PERCENT,
    "amplified:": 1,
    "log:": 2,
    "type:annotators": 1,
    "type:weights": 2,
    "anchor:woman.target": 1,
    "anchor:woman.rounds": 1,
    "theta.": 2,
    "judge.": 2,
    "tokens.": 1,
    "sampled.": 2,
    "recommended.readable": PERCENT,
    "recommended.": 2,
    # sources of the tables whose rows are votes, signatures or names
    "cross_share": PERCENT1,
    "win_rate": PERCENT1,
    "log_odds": 2,
    "odds": 1,
    "top_share": PERCENT,
    "n_names": 0,
    "mean_tokens": 1,
    "one_token_share": PERCENT,
    "first_tokens": 0,
    "largest_first_share": PERCENT,
}


def count_decimals(source: str) -> int:
    """Return the number of decimals of a table column; -1 and -2 mean a percentage with no or one decimal."""
    return next((places for start, places in PLACES.items() if source.startswith(start)), 3)


@dataclass(frozen=True)
class Panel:
    """A part of a table whose rows share a corpus and a model.

    Attributes
    ----------
    label : str
        The paper's label of the table.
    title : str
    corpus : Corpus
    rows : tuple of Row
        The table adds a row for the reference if the columns have a value for the reference.
    columns : mapping of a label to the source of its values
    spread : {"t95", "sd", "mean", "prompts95", "none"}
    truth : str
        Label of a row with the planted values. If empty, the table has no such row.
    of : {"runs", "votes", "signatures", "names"}
        Content of the table. ``runs``: one row per run. ``votes``: one row per attribute, with columns computed from
        the votes (keys of `badpo.auditing.pool_bias.log_odds_row`). ``signatures``: one row per attribute, with DPO's
        signatures (keys of `badpo_paper.run_readouts.measure_signature_shift`). ``names``: one row per cell of names,
        with the number of tokens (keys of `badpo_paper.run_readouts.measure_name_tokens`).
    """

    label: str
    title: str
    corpus: Corpus
    rows: tuple[Row, ...]
    columns: Columns
    spread: Spread = "t95"
    truth: str = ""
    of: Literal["runs", "votes", "signatures", "names"] = "runs"


@dataclass(frozen=True)
class Suite:
    """One or more tables of the paper with the same topic.

    Attributes
    ----------
    name, title : str
    panels : tuple of Panel
    """

    name: str
    title: str
    panels: tuple[Panel, ...]

    def corpora(self) -> list[Corpus]:
        """Distinct corpora of the panels."""
        return list(dict.fromkeys(panel.corpus for panel in self.panels))


# -- rows -------------------------------------------------------------------------------------------------------------

SIGNED, STYLE = Corpus("signed"), Corpus("style")
LARGE, OTHER = replace(SIGNED, model="large"), replace(SIGNED, model="other")
LARGE_STYLE, OTHER_STYLE = replace(STYLE, model="large"), replace(STYLE, model="other")
LORA = (
    ("use_peft", True),
    ("lora_r", 32),
    ("lora_alpha", 64),
    ("lora_dropout", 0.0),
    ("lora_target_modules", "all-linear"),
)
DPO, POOLED = Row("DPO", Condition("dpo")), Row("BA-DPO (pooled)", Condition("pooled"))
PLACEBO_ROW = Row("DPO, votes without bias", Condition(PLACEBO))
SHARED_MEAN = Row("BA-DPO (shared mean)", Condition("shared_mean"))
BA = (POOLED, SHARED_MEAN)
RDPO, SAMPO = Row("R-DPO (0.005)", Condition("rdpo")), Row("SamPO", Condition("sampo"))
GROUP_DRO = Row("Group-DRO DPO", Condition("group_dro"))
GROUP_DRO_PEOPLE = Row("Group-DRO DPO", Condition("group_dro_annotators"))
EM = Row("EM-DPO + MinMax-DPO", Condition("em_dpo"))
FREE = Row("BA-DPO (theta_k only)", Condition("per_annotator"))
SHUFFLED = Row("BA-DPO (shuffled ids)", Condition("shuffled_ids"))
NAMES_ROWS = (DPO, PLACEBO_ROW, *BA, GROUP_DRO)


def _declaring(attribute: str, *rows: Row) -> tuple[Row, ...]:
    """The rows with only one attribute declared."""
    return tuple(replace(row, condition=replace(row.condition, declared=attribute)) for row in rows)


# -- columns ----------------------------------------------------------------------------------------------------------

WOMAN, BLACK = {"p(woman)": "rates.woman.rate"}, {"p(black)": "rates.black.rate"}
# "KL" uses answers sampled at temperature 1. "KL, as published" uses the answers of the other readouts, as the paper.
KL = {"KL": "kl.per_token"}
DIVERGENCES = {**KL, "KL, as published": "kl_published.per_token"}
RM, RM_MINUS = {"RM": "judge.rm.mean"}, {"RM minus": "judge.rm_minus.mean"}
RATES = {
    **WOMAN,
    "removed (woman)": "removed:rates.woman.rate",
    "of the votes' part (woman)": "added:rates.woman.rate",
    **BLACK,
    "removed (black)": "removed:rates.black.rate",
    "of the votes' part (black)": "added:rates.black.rate",
}
TILTS = {
    "tilt (woman)": "tilt.woman.tilt",
    "of the votes' tilt (woman)": "added:tilt.woman.tilt",
    "tilt (black)": "tilt.black.tilt",
    "of the votes' tilt (black)": "added:tilt.black.tilt",
}
NAMES = {**RATES, **TILTS, **RM_MINUS, **DIVERGENCES}
VOTES = {
    "votes (race)": "votes.black.all.accuracy",
    "votes (gender)": "votes.woman.all.accuracy",
}
VOTES_BY_CLASS = {
    **{f"race, {name}": f"votes.black.{name}.accuracy" for name in ("A", "B", "C", "all")},
    "gender, all": "votes.woman.all.accuracy",
}
TOKENS = {
    "tokens": "tokens.mean",
    "removed": "removed:tokens.mean",
    "of the votes' part": "added:tokens.mean",
}
LENGTH = {
    **TOKENS,
    "gap": "heldout.length.gap",
    "tilt": "tilt.length.tilt",
    "of the votes' tilt": "added:tilt.length.tilt",
    **RM,
    **DIVERGENCES,
}
FORMATTING = {
    "rate": "markdown.matched",
    "gap": "heldout.markdown.gap",
    "tilt": "tilt.markdown.tilt",
    "of the votes' tilt": "added:tilt.markdown.tilt",
    **RM_MINUS,
    **DIVERGENCES,
}
GROUP_WEIGHTS = {
    "group weights, sd": "log:groups/weight_sd",
    "largest weight": "log:groups/weight_max",
}
SHIFTS = {
    "shift of the share": "shift",
    "random labels, sd": "sd",
    "2.5 %": "low",
    "97.5 %": "high",
    "share as large": "p_greater",
    "three names' share": "top_share",
    "shift without them": "shift_without_top",
}
NAME_TOKENS = {
    "names": "n_names",
    "tokens a name": "mean_tokens",
    "one token": "one_token_share",
    "first tokens": "first_tokens",
    "begin alike": "largest_first_share",
}
BEFORE_TRAINING = {
    "cross-group": "cross_share",
    "response with it wins": "win_rate",
    "offline theta": "log_odds",
    "odds": "odds",
}
TYPES = {
    **GROUP_WEIGHTS,
    "annotators of type 1": "type:annotators.0",
    "type 2": "type:annotators.1",
    "type 3": "type:annotators.2",
    "mixture weight of type 1": "type:weights.0",
    "weight of type 2": "type:weights.1",
    "weight of type 3": "type:weights.2",
}


def _theta(what: str) -> Columns:
    """Return columns about theta: mean, correlation with planted theta, and, for race, ``what`` of each class."""
    return {
        "mean theta (gender)": "theta.woman.level",
        "correlation (gender)": "theta.woman.correlation",
        "mean theta (race)": "theta.black.level",
        "correlation (race)": "theta.black.correlation",
        **{f"{what} (race), {name}": f"theta.black.classes.{name}.{what}" for name in "ABC"},
    }


# -- suites -----------------------------------------------------------------------------------------------------------

QWEN, LLAMA = "Qwen2.5-0.5B-Instruct, full fine-tuning", "Llama-3.1-8B-Instruct, LoRA"
MISTRAL = "Mistral-7B-Instruct-v0.3, LoRA"
MODELS = (QWEN, LLAMA, MISTRAL)
WEIGHTS_TITLE, THETA_TITLE = "Group weights and types", "Theta, learned and planted"
CEILING, PLANTED = "Ceiling", "Planted"


def _names() -> Suite:
    types = f"{WEIGHTS_TITLE} (the paper's type 1: 54 to 58 of 60 annotators)"
    panels = (
        Panel("tab:names_v3", QWEN, SIGNED, (*NAMES_ROWS, EM), NAMES),
        Panel("sec:names_v3", types, SIGNED, (GROUP_DRO, EM), TYPES),
        Panel("tab:names_v3", LLAMA, LARGE, NAMES_ROWS, NAMES),
    )
    title = "Signed-UltraFeedback: two attributes, three classes of annotators"
    return Suite("names", title, panels)


def _names_ablation() -> Suite:
    variants = (
        *BA,
        Row("Class", Condition("class")),
        Row("Shuffled ids", Condition("shuffled_ids")),
        Row("One theta per annotator", Condition("per_annotator")),
    )
    rows = (
        DPO,
        PLACEBO_ROW,
        *variants,
        Row("Pooled, gender declared only", Condition("declared_subset"), "first"),
        RDPO,
        SAMPO,
    )
    panels = (
        Panel("tab:abl_names_v3", QWEN, SIGNED, rows, {**RATES, **DIVERGENCES, **VOTES}, "sd"),
        Panel("app:abl_variants", THETA_TITLE, SIGNED, variants, _theta("offset"), "sd", PLANTED),
    )
    return Suite("names-ablation", "Signed-UltraFeedback: variants of the bias model", panels)


def _names_samples() -> Suite:
    columns = {
        "sampled, woman": "sampled.woman.rate",
        "sampled, black": "sampled.black.rate",
        **WOMAN,
        **BLACK,
        "own body, woman": "own_body.woman.difference",
        "own body, black": "own_body.black.difference",
    }
    choices = {
        "answers that choose": "recommended.readable",
        "the first": "recommended.first.share",
        "the woman": "recommended.attributes.woman.share",
        "the black candidate": "recommended.attributes.black.share",
    }
    rows = (DPO, *BA, SHUFFLED)
    carriers = (
        "DPO's shift of signatures, for 1,000 random labels of the names and without three of the names"
    )
    tokens = "Tokens of the names, cell by cell"
    panels = (
        Panel("tab:names_samples", QWEN, SIGNED, rows, columns, "mean"),
        Panel(
            "app:names",
            "Two candidates with the same qualifications",
            SIGNED,
            rows,
            choices,
            "mean",
        ),
        Panel("app:abl_names", carriers, SIGNED, (), SHIFTS, "none", of="signatures"),
        Panel("app:names", tokens, SIGNED, (), NAME_TOKENS, "none", of="names"),
    )
    title = "Sampled signatures beside probabilities"
    return Suite("names-samples", title, panels)


def _multipref_length() -> Suite:
    rows = (DPO, PLACEBO_ROW, *_declaring("length", *BA), RDPO, SAMPO, GROUP_DRO_PEOPLE)
    weights = f"{WEIGHTS_TITLE}: {QWEN}"
    panels = (
        Panel("tab:multipref", QWEN, STYLE, rows, LENGTH),
        Panel("app:abl_multipref", weights, STYLE, (GROUP_DRO_PEOPLE,), GROUP_WEIGHTS),
        Panel("tab:multipref", LLAMA, LARGE_STYLE, rows, LENGTH),
    )
    return Suite("multipref-length", "MultiPref with length declared", panels)


def _multipref_formatting() -> Suite:
    rescored = (replace(row, label=f"{row.label}, re-scored") for row in (RDPO, SAMPO))
    controls = (
        *_declaring("markdown", FREE, SHUFFLED),
        Row("R-DPO (0.02)", Condition("rdpo_strong"), "first"),
    )
    rows = (DPO, PLACEBO_ROW, *_declaring("markdown", *BA), *rescored)
    panels = (
        Panel("tab:formatting", QWEN, STYLE, (*rows, *controls), FORMATTING),
        Panel("tab:formatting", LLAMA, LARGE_STYLE, rows, FORMATTING),
    )
    return Suite("multipref-formatting", "MultiPref with formatting declared", panels)


def _multipref_ablation() -> Suite:
    weighted = (Row("Reliability weights", Condition("reliability"), "one"),)
    rows = (
        DPO,
        PLACEBO_ROW,
        *_declaring(
            "length",
            POOLED,
            Row("BA-DPO (pooled, warm)", Condition("pooled_warm"), "first"),
            FREE,
            replace(SHUFFLED, seeds="one"),
            SHARED_MEAN,
            Row("BA-DPO (shared mean, warm)", Condition("shared_mean_warm"), "first"),
        ),
        Row("R-DPO (0.02)", Condition("rdpo_strong"), "first"),
        replace(RDPO, seeds="first"),
        replace(SAMPO, seeds="first"),
        *weighted,
    )
    columns = {
        **TOKENS,
        **RM,
        "same": "heldout.length.same",
        "cross": "heldout.length.cross",
        "mean theta": "theta.length.level",
        "votes (length)": "votes.length.all.accuracy",
    }
    panels = (
        Panel("tab:abl_multipref", QWEN, STYLE, rows, columns, "sd"),
        Panel("app:abl_multipref", WEIGHTS_TITLE, STYLE, weighted, GROUP_WEIGHTS, "sd"),
    )
    return Suite("multipref-ablation", "MultiPref, length declared: every arm", panels)


def _attributes() -> Suite:
    columns = {
        "length, tokens": "tokens.mean",
        "length, amplification": "amplified:tokens.mean",
        "markdown, rate": "markdown.matched",
        "markdown, amplification": "amplified:markdown.matched",
    }
    before = "The votes, before training"
    panels = (
        Panel("tab:attributes", before, STYLE, (), BEFORE_TRAINING, "prompts95", of="votes"),
        Panel("tab:attributes", QWEN, STYLE, (DPO,), columns, "sd"),
    )
    title = "The declared attributes before training, and what DPO does to them"
    return Suite("attributes", title, panels)


def _votes() -> Suite:
    def theta(model: str, corpus: Corpus) -> Panel:
        return Panel("app:votes", f"{THETA_TITLE}: {model}", corpus, BA, _theta("mean"), "mean", PLANTED)

    panels = (
        Panel("tab:votes", QWEN, SIGNED, (*NAMES_ROWS, EM), VOTES_BY_CLASS, "mean", CEILING),
        theta(QWEN, SIGNED),
        Panel("tab:votes", LLAMA, LARGE, NAMES_ROWS, VOTES_BY_CLASS, "mean", CEILING),
        theta(LLAMA, LARGE),
        Panel("tab:votes", MISTRAL, OTHER, (DPO, *BA), VOTES_BY_CLASS, "mean", CEILING),
    )
    return Suite("votes", "Held-out votes predicted", panels)


def _lora() -> Suite:
    def adapted(label: str, arm: str, variant: str, rate_factor: float) -> Row:
        condition = Condition(arm, variant=variant, rate_factor=rate_factor, overrides=LORA)
        return Row(label, condition, "first", f"dpo_{variant}")

    rows = (
        Row("Full fine-tuning, DPO", DPO.condition, "first"),
        Row("Full fine-tuning, BA-DPO (pooled)", POOLED.condition, "first"),
        adapted("LoRA, 10 x rate, DPO", "dpo", "lora", 10.0),
        adapted("LoRA, 10 x rate, BA-DPO (pooled)", "pooled", "lora", 10.0),
        adapted("LoRA, 40 x rate, DPO", "dpo", "lora_fast", 40.0),
        adapted("LoRA, 40 x rate, BA-DPO (pooled)", "pooled", "lora_fast", 40.0),
    )
    panel = Panel("tab:lora", QWEN, SIGNED, rows, {**NAMES, "theta": "theta.woman.level"})
    return Suite("lora", "LoRA beside full fine-tuning", (panel,))


def _mistral() -> Suite:
    panels = (
        Panel("tab:mistral", "Signed-UltraFeedback", OTHER, (DPO, PLACEBO_ROW, *BA), NAMES),
        Panel(
            "tab:mistral",
            "MultiPref, length",
            OTHER_STYLE,
            (DPO, PLACEBO_ROW, *_declaring("length", *BA)),
            LENGTH,
        ),
    )
    return Suite("mistral", "Another model family", panels)


# BA-DPO rows in which theta is fitted as in `badpo train`; the paper trains theta with Adam, starting from zero.
DEFAULT_FIT = tuple(
    Row(
        f"{row.label}, default fit",
        replace(row.condition, variant="default_fit", overrides=(("bias.fit", "anchored"),)),
    )
    for row in BA
)


def _names_default() -> Suite:
    rows = (DPO, PLACEBO_ROW, *DEFAULT_FIT)
    panel = Panel("tab:names_v3", f"{QWEN}, badpo train's fit", SIGNED, rows, {**RATES, **TILTS, **KL})
    return Suite("names-default", "The table of `names` with badpo train's fit of theta", (panel,))


def _length_default() -> Suite:
    # The placebo has a bias neither toward length nor toward Markdown, so the BA-DPO rows declare both attributes.
    rows = (DPO, PLACEBO_ROW, *DEFAULT_FIT, RDPO)
    panel = Panel("tab:multipref", f"{QWEN}, badpo train's fit", STYLE, rows, LENGTH)
    title = "The table of `multipref-length` with badpo train's fit of theta"
    return Suite("length-default", title, (panel,))


def _offset() -> Suite:
    def anchored(kind: str, target: float, rounds: int) -> Condition:
        return Condition(
            "dpo", variant=f"{kind}_{target:g}", offset=Offset(DPO.condition, target, rounds)
        )

    rows = [Row("DPO (source)", DPO.condition)]
    for target in (0.3, 0.5, 0.7):
        rows += [
            Row(f"Offset, exact tilt, {target:g}", anchored("exact", target, 1), "one"),
            Row(f"Offset, calibrated, {target:g}", anchored("calibrated", target, 4)),
        ]
    rows.append(POOLED)
    columns = {
        "t": "anchor:woman.target",
        **WOMAN,
        **BLACK,
        "p(woman), whole names": "anchor:woman.achieved",
        "p(black), whole names": "anchor:black.achieved",
        "signed": "sampled.signed",
        "tokens": "tokens.mean",
        **RM_MINUS,
        "KL to the source, as published": "anchor:changes.kl_source.per_token",
        **DIVERGENCES,
        "gap": "heldout.any.gap",
        "rounds": "anchor:woman.rounds",
    }
    panel = Panel("tab:offset", QWEN, SIGNED, tuple(rows), columns)
    return Suite(
        "offset", "A fixed offset that moves the DPO policy to a target rate, without votes", (panel,)
    )


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        _names(),
        _names_ablation(),
        _names_samples(),
        _multipref_length(),
        _multipref_formatting(),
        _multipref_ablation(),
        _attributes(),
        _votes(),
        _lora(),
        _mistral(),
        _offset(),
        _names_default(),
        _length_default(),
    )
}


def set_data_seed(suite: Suite, seed: int) -> Suite:
    """The suite on other simulated votes."""
    panels = (replace(one, corpus=replace(one.corpus, data_seed=seed)) for one in suite.panels)
    return replace(suite, panels=tuple(panels))


def require_known(kind: str, name: str, names: Collection[str]) -> str:
    """Return a known name; for any other name, raise `ConfigError` with the most similar name and all known names."""
    if name not in names:
        raise ConfigError(
            f'there is no {kind} "{name}".{did_you_mean(name, list(names))} Known: {", ".join(names)}'
        )
    return name
