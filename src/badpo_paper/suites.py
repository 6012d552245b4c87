"""Define the arms that the paper compares, and the suites: tables of the paper, with their runs and readouts.

An arm is a training condition. Arms and suites consist only of data. A run's folder name contains the run's settings
but not its suite, so several suites can share the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from badpo.data.problems import ConfigError, did_you_mean
from badpo.results.formatting import PLACEBO

# -- arms --------------------------------------------------------------------------------------------------------------

# Parameters of an objective by name.
Settings = Mapping[str, float | str]


@dataclass(frozen=True)
class Arm:
    """Settings that distinguish one training condition from another.

    Attributes
    ----------
    bias : str or None
        Variant of the bias term, a key of `badpo.objective.bias.VARIANTS`. It selects the learned parts of theta.
        If None, nothing is trained, and the arm is the reference itself.
    warm_start : {"zero", "offline"}
        Initial value of theta: 0, or the log-odds of the training votes.
    votes : {"given", "unbiased"}
        ``unbiased`` is the placebo: the simulated votes without any bias or, for votes of people, the given votes with
        weights that balance the votes for and against each attribute (`badpo.objective.objectives.PlaceboWeights`).
    identities : {"given", "shuffled"}
        ``shuffled`` assigns every vote to a random annotator, so that the ids contain no information.
    declared : {"all", "first", "length_tokens"}
        Attributes that the bias term contains. The votes are always biased toward all attributes of the corpus.
        ``length_tokens`` is an additional attribute: the number of tokens of a response.
    objective : str
        Loss of a vote: a key of `badpo.objective.registry.OBJECTIVES`, or ``types`` for EM-DPO, which trains
        several policies (`badpo_paper.em_dpo`).
    settings : mapping
        Parameters of the objective.
    fixed : float
        Constant, not trained, that is added to theta of every declared attribute.
    """

    bias: str | None
    warm_start: Literal["zero", "offline"] = "zero"
    votes: Literal["given", "unbiased"] = "given"
    identities: Literal["given", "shuffled"] = "given"
    declared: Literal["all", "first", "length_tokens"] = "all"
    objective: str = "votes"
    settings: Settings = field(default_factory=dict, hash=False)
    fixed: float = 0.0


ARMS: dict[str, Arm] = {
    "reference": Arm(bias=None),
    "dpo": Arm(bias="none"),
    "dpo_placebo": Arm(bias="none", votes="unbiased"),
    "pooled": Arm(bias="pooled"),
    "per_annotator": Arm(bias="per_annotator"),
    "shared_mean": Arm(bias="shared_mean"),
    "class": Arm(bias="class"),
    "shuffled_ids": Arm(bias="per_annotator", identities="shuffled"),
    "pooled_warm": Arm(bias="pooled", warm_start="offline"),
    "shared_mean_warm": Arm(bias="shared_mean", warm_start="offline"),
    "declared_subset": Arm(bias="pooled", declared="first"),
    # Baselines. docs/arms.md describes each baseline and its differences from the published code.
    "rdpo": Arm(bias="none", declared="length_tokens", fixed=0.005),
    "rdpo_strong": Arm(bias="none", declared="length_tokens", fixed=0.02),
    "sampo": Arm(bias="none", objective="sampled_tokens"),
    "group_dro": Arm(bias="none", objective="group_weights", settings={"groups": "class", "eta": 0.5}),
    "group_dro_annotators": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": 0.5}
    ),
    "reliability": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": -0.5}
    ),
    "em_dpo": Arm(
        bias="none", objective="types", settings={"n_types": 3, "n_rounds": 4, "round_share": 0.2}
    ),
}


# -- parts of a suite --------------------------------------------------------------------------------------------------

# The number after the plus-minus sign in a cell is:
# "t95": half-width of Student's 95 % confidence interval over seeds.
# "sd": one standard deviation over seeds.
# "mean": no number after the mean.
# "prompts95": half-width of the 95 % confidence interval clustered by prompt.
# "none": no number, because the value in the cell is not a mean over seeds.
Spread = Literal["t95", "sd", "mean", "prompts95", "none"]


@dataclass(frozen=True)
class Corpus:
    """A corpus: the votes, the start model and the reference that all runs of a panel share."""

    kind: Literal["signed", "style"]
    model: Literal["small", "large", "other", "demo"] = "small"
    data_seed: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that contains the runs on this corpus."""
        if self.model == "demo":
            return "."  # all data seeds use the same folder
        return self.kind if self.model == "small" else f"{self.kind}-{self.model}"


@dataclass(frozen=True)
class Offset:
    """Settings of an offset stage, which anchors a finished run by training it on its own answers."""

    source: Condition
    target: float
    rounds: int


@dataclass(frozen=True)
class Condition:
    """Settings of a training run, apart from its corpus and its seed.

    Attributes
    ----------
    arm : str
        A key of ``ARMS``.
    declared : str
        The declared attribute. If the name is empty, all attributes of the corpus are declared.
    variant : str
        Name that distinguishes the condition from other conditions with the same arm.
    rate_factor : float
        Factor by which the policy's learning rate is multiplied.
    overrides : tuple of (str, value)
        Recipe keys that differ from those of the scale.
    offset : Offset or None
        If given, the run is not trained from the reference; instead, a run of the same arm is anchored.
    """

    arm: str
    declared: str = ""
    variant: str = ""
    rate_factor: float = 1.0
    overrides: tuple[tuple[str, bool | float | str], ...] = ()
    offset: Offset | None = None

    @property
    def name(self) -> str:
        """Name of the run folder, but without the seed, for example ``pooled-length``."""
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
        Condition to whose shift at the same seed the removed share is relative.
    """

    label: str
    condition: Condition
    seeds: Literal["all", "first", "one"] = "all"
    against: str = "dpo"


# Columns of a table: label -> source of the column's values. The file with the paper's numbers uses the same labels.
# A source is a place in ``readouts.json``, with keys joined by dots, or has one of these forms:
# ``shift:PLACE`` is the shift from the reference.
# ``removed:PLACE`` is the removed share of another condition's shift from the reference.
# ``added:PLACE`` is the removed share of another condition's shift from the placebo, which the votes' bias caused.
# ``amplified:PLACE`` is the shift in standard deviations over seeds.
# ``distance:PLACE`` is the distance to the reference in log-odds.
# ``log:NAME`` is a metric of the last training step.
# ``type:annotators.0`` and ``type:weights.0`` describe the EM-DPO type with the most annotators, ``.1`` the next type.
# ``anchor:PLACE`` is a place in ``anchor.json``.
Columns = Mapping[str, str]
# Prefix of a column's source -> number of decimals; columns with other sources have three decimals.
# Negative numbers stand for percentages: -1 for no decimals, and -2 for one decimal.
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
    """Return the number of decimals of a column; -1 and -2 stand for a percentage with no decimals or with one."""
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
        Label of the row with the planted values. If the label is empty, the table has no such row.
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
    """One or more tables of the paper on the same topic.

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
SAMPLED = {
    "sampled, woman": "sampled.woman.rate",
    "sampled, black": "sampled.black.rate",
    **WOMAN,
    **BLACK,
    "own body, woman": "own_body.woman.difference",
    "own body, black": "own_body.black.difference",
}
CHOICES = {
    "answers that choose": "recommended.readable",
    "the first": "recommended.first.share",
    "the woman": "recommended.attributes.woman.share",
    "the black candidate": "recommended.attributes.black.share",
}
EVERY_ARM = {
    **TOKENS,
    **RM,
    "same": "heldout.length.same",
    "cross": "heldout.length.cross",
    "mean theta": "theta.length.level",
    "votes (length)": "votes.length.all.accuracy",
}
AMPLIFIED = {
    "length, tokens": "tokens.mean",
    "length, amplification": "amplified:tokens.mean",
    "markdown, rate": "markdown.matched",
    "markdown, amplification": "amplified:markdown.matched",
}
OFFSET = {
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


def _theta(what: str) -> Columns:
    """Return columns about theta: its mean and its correlation with planted theta; for race, also ``what`` by class."""
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
VOTES_TITLE = "The votes, before training"
CEILING, PLANTED = "Ceiling", "Planted"


VARIANT_ROWS = (
    *BA,
    Row("Class", Condition("class")),
    Row("Shuffled ids", Condition("shuffled_ids")),
    Row("One theta per annotator", Condition("per_annotator")),
)
ONE_DECLARED = Row("Pooled, gender declared only", Condition("declared_subset"), "first")
ABLATION_ROWS = (DPO, PLACEBO_ROW, *VARIANT_ROWS, ONE_DECLARED, RDPO, SAMPO)
SAMPLES_ROWS = (DPO, *BA, SHUFFLED)
LENGTH_ROWS = (DPO, PLACEBO_ROW, *_declaring("length", *BA), RDPO, SAMPO, GROUP_DRO_PEOPLE)
RESCORED = (replace(row, label=f"{row.label}, re-scored") for row in (RDPO, SAMPO))
FORMATTING_ROWS = (DPO, PLACEBO_ROW, *_declaring("markdown", *BA), *RESCORED)
RDPO_STRONG = Row("R-DPO (0.02)", Condition("rdpo_strong"), "first")
FORMATTING_CONTROLS = (*_declaring("markdown", FREE, SHUFFLED), RDPO_STRONG)
RELIABILITY = Row("Reliability weights", Condition("reliability"), "one")
EVERY_ROW = (
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
    RDPO_STRONG,
    replace(RDPO, seeds="first"),
    replace(SAMPO, seeds="first"),
    RELIABILITY,
)


def _adapt(label: str, arm: str, variant: str, rate_factor: float) -> Row:
    """Return a row for a LoRA adapter; its removed share is relative to DPO with the same adapter settings."""
    condition = Condition(arm, variant=variant, rate_factor=rate_factor, overrides=LORA)
    return Row(label, condition, "first", f"dpo_{variant}")


LORA_ROWS = (
    Row("Full fine-tuning, DPO", DPO.condition, "first"),
    Row("Full fine-tuning, BA-DPO (pooled)", POOLED.condition, "first"),
    _adapt("LoRA, 10 x rate, DPO", "dpo", "lora", 10.0),
    _adapt("LoRA, 10 x rate, BA-DPO (pooled)", "pooled", "lora", 10.0),
    _adapt("LoRA, 40 x rate, DPO", "dpo", "lora_fast", 40.0),
    _adapt("LoRA, 40 x rate, BA-DPO (pooled)", "pooled", "lora_fast", 40.0),
)


def _anchor(target: float) -> tuple[Row, Row]:
    """Return two rows that anchor DPO's runs at a target rate: one uses the exact tilt, one uses calibrated rounds."""
    exact, calibrated = (
        Condition("dpo", variant=f"{kind}_{target:g}", offset=Offset(DPO.condition, target, rounds))
        for kind, rounds in (("exact", 1), ("calibrated", 4))
    )
    return (
        Row(f"Offset, exact tilt, {target:g}", exact, "one"),
        Row(f"Offset, calibrated, {target:g}", calibrated),
    )


OFFSET_ROWS = (Row("DPO (source)", DPO.condition), *_anchor(0.3), *_anchor(0.5), *_anchor(0.7), POOLED)
# BA-DPO rows that fit theta as `badpo train` does by default; the paper trains theta with Adam from zero.
ANCHORED_FIT = (("bias.fit", "anchored"),)
DEFAULT_FIT = tuple(
    Row(
        f"{row.label}, default fit",
        replace(row.condition, variant="default_fit", overrides=ANCHORED_FIT),
    )
    for row in BA
)


def _suite(name: str, title: str, *panels: Panel) -> Suite:
    return Suite(name, title, panels)


def _show_theta(model: str, corpus: Corpus) -> Panel:
    """Return a panel that shows the learned and the planted theta of the BA-DPO rows."""
    return Panel("app:votes", f"{THETA_TITLE}: {model}", corpus, BA, _theta("mean"), "mean", PLANTED)


TYPES_TITLE = f"{WEIGHTS_TITLE} (the paper's type 1: 54 to 58 of 60 annotators)"
CARRIERS = (
    "DPO's shift of signatures, for 1,000 random labels of the names and without three of the names"
)
TWO_CANDIDATES = "Two candidates with the same qualifications"
BADPO_FIT = f"{QWEN}, badpo train's fit"
_SUITES = (
    _suite(
        "names",
        "Signed-UltraFeedback: two attributes, three classes of annotators",
        Panel("tab:names_v3", QWEN, SIGNED, (*NAMES_ROWS, EM), NAMES),
        Panel("sec:names_v3", TYPES_TITLE, SIGNED, (GROUP_DRO, EM), TYPES),
        Panel("tab:names_v3", LLAMA, LARGE, NAMES_ROWS, NAMES),
    ),
    _suite(
        "names-ablation",
        "Signed-UltraFeedback: variants of the bias model",
        Panel("tab:abl_names_v3", QWEN, SIGNED, ABLATION_ROWS, {**RATES, **DIVERGENCES, **VOTES}, "sd"),
        Panel("app:abl_variants", THETA_TITLE, SIGNED, VARIANT_ROWS, _theta("offset"), "sd", PLANTED),
    ),
    _suite(
        "names-samples",
        "Sampled signatures beside probabilities",
        Panel("tab:names_samples", QWEN, SIGNED, SAMPLES_ROWS, SAMPLED, "mean"),
        Panel("app:names", TWO_CANDIDATES, SIGNED, SAMPLES_ROWS, CHOICES, "mean"),
        Panel("app:abl_names", CARRIERS, SIGNED, (), SHIFTS, "none", of="signatures"),
        Panel(
            "app:names", "Tokens of the names, cell by cell", SIGNED, (), NAME_TOKENS, "none", of="names"
        ),
    ),
    _suite(
        "multipref-length",
        "MultiPref with length declared",
        Panel("tab:multipref", QWEN, STYLE, LENGTH_ROWS, LENGTH),
        Panel(
            "app:abl_multipref", f"{WEIGHTS_TITLE}: {QWEN}", STYLE, (GROUP_DRO_PEOPLE,), GROUP_WEIGHTS
        ),
        Panel("tab:multipref", LLAMA, LARGE_STYLE, LENGTH_ROWS, LENGTH),
    ),
    _suite(
        "multipref-formatting",
        "MultiPref with formatting declared",
        Panel("tab:formatting", QWEN, STYLE, FORMATTING_ROWS + FORMATTING_CONTROLS, FORMATTING),
        Panel("tab:formatting", LLAMA, LARGE_STYLE, FORMATTING_ROWS, FORMATTING),
    ),
    _suite(
        "multipref-ablation",
        "MultiPref, length declared: every arm",
        Panel("tab:abl_multipref", QWEN, STYLE, EVERY_ROW, EVERY_ARM, "sd"),
        Panel("app:abl_multipref", WEIGHTS_TITLE, STYLE, (RELIABILITY,), GROUP_WEIGHTS, "sd"),
    ),
    _suite(
        "attributes",
        "The declared attributes before training, and what DPO does to them",
        Panel("tab:attributes", VOTES_TITLE, STYLE, (), BEFORE_TRAINING, "prompts95", of="votes"),
        Panel("tab:attributes", QWEN, STYLE, (DPO,), AMPLIFIED, "sd"),
    ),
    _suite(
        "votes",
        "Held-out votes predicted",
        Panel("tab:votes", QWEN, SIGNED, (*NAMES_ROWS, EM), VOTES_BY_CLASS, "mean", CEILING),
        _show_theta(QWEN, SIGNED),
        Panel("tab:votes", LLAMA, LARGE, NAMES_ROWS, VOTES_BY_CLASS, "mean", CEILING),
        _show_theta(LLAMA, LARGE),
        Panel("tab:votes", MISTRAL, OTHER, (DPO, *BA), VOTES_BY_CLASS, "mean", CEILING),
    ),
    _suite(
        "lora",
        "LoRA beside full fine-tuning",
        Panel("tab:lora", QWEN, SIGNED, LORA_ROWS, {**NAMES, "theta": "theta.woman.level"}),
    ),
    _suite(
        "mistral",
        "Another model family",
        Panel("tab:mistral", "Signed-UltraFeedback", OTHER, (DPO, PLACEBO_ROW, *BA), NAMES),
        Panel("tab:mistral", "MultiPref, length", OTHER_STYLE, LENGTH_ROWS[:4], LENGTH),
    ),
    _suite(
        "offset",
        "A fixed offset that moves the DPO policy to a target rate, without votes",
        Panel("tab:offset", QWEN, SIGNED, OFFSET_ROWS, OFFSET),
    ),
    _suite(
        "names-default",
        "The table of `names` with badpo train's fit of theta",
        Panel(
            "tab:names_v3", BADPO_FIT, SIGNED, (DPO, PLACEBO_ROW, *DEFAULT_FIT), {**RATES, **TILTS, **KL}
        ),
    ),
    _suite(
        "length-default",
        "The table of `multipref-length` with badpo train's fit of theta",
        # The placebo is biased neither toward length nor toward Markdown, so the rows declare both attributes.
        Panel("tab:multipref", BADPO_FIT, STYLE, (DPO, PLACEBO_ROW, *DEFAULT_FIT, RDPO), LENGTH),
    ),
)
SUITES = {suite.name: suite for suite in _SUITES}


def set_data_seed(suite: Suite, seed: int) -> Suite:
    """Return a copy of the suite whose votes are simulated with another seed."""
    panels = (replace(one, corpus=replace(one.corpus, data_seed=seed)) for one in suite.panels)
    return replace(suite, panels=tuple(panels))


def require_known(kind: str, name: str, names: Collection[str]) -> str:
    """Return a known name; for an unknown name, raise `ConfigError` with the most similar name and all known names."""
    if name not in names:
        raise ConfigError(
            f'there is no {kind} "{name}".{did_you_mean(name, list(names))} Known: {", ".join(names)}'
        )
    return name
