"""The suites: which runs stand in which table, what is read from them, and which interval the table prints.

A suite is data. Runs are named by what decides them and not by their suite, so that suites share them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from badpo.data.problems import ConfigError, did_you_mean
from badpo_paper.arms import BEYOND_THE_PAPER

# What stands behind a mean: half of Student's 95 % interval over seeds, one standard deviation, nothing, or half of
# the 95 % interval clustered by prompt; "none" where a value is no mean over seeds.
Spread = Literal["t95", "sd", "mean", "prompts95", "none"]


@dataclass(frozen=True)
class Corpus:
    """What a panel's runs share: votes, start model and reference."""

    kind: Literal["signed", "style"]
    model: Literal["small", "large", "other", "demo"] = "small"
    data_seed: int = 0

    @property
    def folder(self) -> str:
        """Name of the folder that holds the runs."""
        if self.model == "demo":
            return "."  # whatever the data seed
        model = "" if self.model == "small" else f"-{self.model}"
        return f"{self.kind}{model}{f'-d{self.data_seed}' if self.data_seed else ''}"


@dataclass(frozen=True)
class Offset:
    """A finished run anchored by an offset stage on its own answers."""

    source: Condition
    target: float
    rounds: int


@dataclass(frozen=True)
class Condition:
    """What is trained, apart from corpus and seed.

    Attributes
    ----------
    arm : str
        A key of `badpo_paper.arms.ARMS`.
    declared : str
        The attribute that the votes are given; empty: all of the corpus's.
    variant : str
        What tells the condition from others of its arm.
    overrides : tuple of (str, number)
        Keys of the recipe that differ; ``rate_factor`` multiplies the policy's learning rate.
    offset : Offset or None
        Anchored from another condition's run, whose arm it has, and not trained from the reference.
    """

    arm: str
    declared: str = ""
    variant: str = ""
    overrides: tuple[tuple[str, Any], ...] = ()
    offset: Offset | None = None

    @property
    def name(self) -> str:
        """The run folder's name without its seed, such as ``pooled-length``."""
        return "_".join(filter(None, (self.arm, self.variant))) + f"-{self.declared}" * bool(
            self.declared
        )


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    label : str
        As the table has it; a key of the paper's numbers.
    condition : Condition
    seeds : {"all", "first", "one"}
        ``first``: a control that the paper ran at its first seed, and a scale at all of them where it can
        (`badpo_paper.settings.Scale`). ``one``: run at the first at every scale.
    against : str
        The condition whose shift is removed, at the same seed.
    note : str
        A footnote, where the row is not what its label alone says.
    """

    label: str
    condition: Condition
    seeds: Literal["all", "first", "one"] = "all"
    against: str = "dpo"
    note: str = ""


# Columns of a table: of each label, which is a key of the paper's numbers, the source of its values. That is a place in
# ``readouts.json``, its keys joined by dots. ``removed:PLACE`` is the share of the shift that is removed,
# ``shift:PLACE`` the shift from the reference, ``amplified:PLACE`` that in seed standard deviations, ``distance:PLACE``
# that in log-odds. ``log:NAME`` is a metric of the last training step. ``type:annotators.0`` and ``type:weights.0`` are
# of the type of EM-DPO that most annotators are of, ``.1`` of the second. ``anchor:PLACE`` is in ``anchor.json``.
Columns = Mapping[str, str]
# Decimals by how a source begins, where they are not three; of a percentage below zero.
PERCENT, PERCENT1 = -1, -2
PLACES = {
    "removed:": PERCENT,
    "amplified:": 1,
    "log:": 2,
    "type:annotators": 1,
    "type:weights": 2,
    "anchor:woman.asked": 1,
    "anchor:woman.rounds": 1,
    "theta.": 2,
    "judge.": 2,
    "tokens.": 1,
    "sampled.": 2,
    "recommended.readable": PERCENT,
    "recommended.": 2,
    # of votes, signatures and names
    "cross_share": PERCENT1,
    "carrier_wins": PERCENT1,
    "log_odds": 2,
    "odds": 1,
    "top_share": PERCENT,
    "n_names": 0,
    "mean_tokens": 1,
    "one_token_share": PERCENT,
    "first_tokens": 0,
    "largest_first_share": PERCENT,
}


def places_of(source: str) -> int:
    """With how many decimals the values of a source are told."""
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
        The reference stands above them by itself, where the columns tell something of it.
    columns : mapping of a label to the source of its values
    spread : {"t95", "sd", "mean", "prompts95", "none"}
    truth : str
        Label of a row with what was planted, in place of what was learned; empty: no such row.
    of : {"runs", "votes", "signatures", "names"}
        What the table is of. ``votes``: its rows are the attributes of the corpus, its columns are read from the votes
        (keys of `badpo.auditing.pool.log_odds_row`). ``signatures``: DPO's, attribute by attribute (keys of
        `badpo_paper.run_readouts.signature_shift`). ``names``: how many tokens these take, cell by cell (keys of
        `badpo_paper.run_readouts.token_balance`).
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
    """A table of the paper, or one of ours.

    Attributes
    ----------
    name, title : str
    panels : tuple of Panel
    patterns : tuple of str
        Keys of `badpo_paper.patterns.PATTERNS`.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    patterns: tuple[str, ...] = ()

    def corpora(self) -> list[Corpus]:
        """The corpora of its panels, each once."""
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
SHARED_MEAN = Row("BA-DPO (shared mean)", Condition("shared_mean"))
BA = (POOLED, SHARED_MEAN)
RDPO, SAMPO = Row("R-DPO (0.005)", Condition("rdpo")), Row("SamPO", Condition("sampo"))
GROUP_DRO = Row("Group-DRO DPO", Condition("group_dro"))
GROUP_DRO_PEOPLE = Row("Group-DRO DPO", Condition("group_dro_annotators"))
EM = Row("EM-DPO + MinMax-DPO", Condition("em_dpo"))
NAMES_ROWS = (DPO, *BA, GROUP_DRO)


def _declaring(attribute: str, *rows: Row) -> tuple[Row, ...]:
    """The same rows with one attribute declared."""
    return tuple(replace(row, condition=replace(row.condition, declared=attribute)) for row in rows)


def _beyond_the_paper(suite: str) -> tuple[Row, ...]:
    """A suite's rows of arms that the paper has no rows for."""
    return tuple(
        Row(shown.label, Condition(arm), "one", shown.against, shown.note)
        for arm, shown in BEYOND_THE_PAPER.items()
        if shown.suite == suite
    )


# -- columns ----------------------------------------------------------------------------------------------------------

WOMAN, BLACK = {"p(woman)": "rates.woman.rate"}, {"p(black)": "rates.black.rate"}
# by definition, on answers drawn at temperature 1; and as the paper's numbers were made, on those of the other readouts
KL = {"KL": "kl.per_token"}
DIVERGENCES = {**KL, "KL, as published": "kl_published.per_token"}
RM, RM_MINUS = {"RM": "judge.rm.mean"}, {"RM minus": "judge.rm_minus.mean"}
RATES = {
    **WOMAN,
    "removed (woman)": "removed:rates.woman.rate",
    **BLACK,
    "removed (black)": "removed:rates.black.rate",
}
NAMES = {**RATES, **RM_MINUS, **DIVERGENCES}
VOTES = {
    "votes (race)": "votes.black.all.accuracy",
    "votes (gender)": "votes.woman.all.accuracy",
}
VOTES_BY_CLASS = {
    **{f"race, {name}": f"votes.black.{name}.accuracy" for name in ("A", "B", "C", "all")},
    "gender, all": "votes.woman.all.accuracy",
}
TOKENS = {"tokens": "tokens.mean", "removed": "removed:tokens.mean"}
LENGTH = {**TOKENS, "gap": "heldout.length.gap", **RM, **DIVERGENCES}
FORMATTING = {
    "rate": "markdown.matched",
    "gap": "heldout.markdown.gap",
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
    "carrier wins": "carrier_wins",
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
    """Level and correlation of both attributes, and means or offsets of the classes on the one they disagree on."""
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
    patterns = ("amplifies_names", "removes_names", "kl_names", "agree_names", "group_dro_names")
    title = "Signed-UltraFeedback: two attributes, three classes of annotators"
    return Suite("names", title, panels, (*patterns, "theta_correlation"))


def _names_ablation() -> Suite:
    variants = (
        *BA,
        Row("Class", Condition("class")),
        Row("Shuffled ids", Condition("shuffled_ids")),
        Row("One theta per annotator", Condition("per_annotator")),
    )
    rows = (
        DPO,
        *variants,
        Row("Pooled, gender declared only", Condition("declared_subset"), "first"),
        RDPO,
        SAMPO,
        *_beyond_the_paper("names-ablation"),
    )
    panels = (
        Panel("tab:abl_names_v3", QWEN, SIGNED, rows, {**RATES, **DIVERGENCES, **VOTES}, "sd"),
        Panel("app:abl_variants", THETA_TITLE, SIGNED, variants, _theta("offset"), "sd", PLANTED),
    )
    patterns = (
        "class_names",
        "shuffled_names",
        "free_names",
        "undeclared_names",
        "length_methods_names",
    )
    return Suite("names-ablation", "Signed-UltraFeedback: variants of the bias model", panels, patterns)


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
    rows = (DPO, *BA, Row("BA-DPO (shuffled ids)", Condition("shuffled_ids")))
    carriers = "DPO's signatures by carriers: among 1,000 random labels, and without three names"
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
    return Suite("names-samples", title, panels, ("samples_saturate",))


def _multipref_length() -> Suite:
    rows = (DPO, *_declaring("length", *BA), RDPO, SAMPO, GROUP_DRO_PEOPLE)
    weights = f"{WEIGHTS_TITLE}: {QWEN}"
    panels = (
        Panel("tab:multipref", QWEN, STYLE, rows, LENGTH),
        Panel("app:abl_multipref", weights, STYLE, (GROUP_DRO_PEOPLE,), GROUP_WEIGHTS),
        Panel("tab:multipref", LLAMA, LARGE_STYLE, rows, LENGTH),
    )
    patterns = ("amplifies_length", "removes_length", "gap_length", "rdpo_gap", "sampo_gap")
    return Suite(
        "multipref-length",
        "MultiPref with length declared",
        panels,
        (*patterns, "group_dro_length"),
    )


def _multipref_formatting() -> Suite:
    rescored = (replace(row, label=f"{row.label}, re-scored") for row in (RDPO, SAMPO))
    rows = (DPO, *_declaring("markdown", *BA), *rescored)
    panels = (
        Panel("tab:formatting", QWEN, STYLE, rows, FORMATTING),
        Panel("tab:formatting", LLAMA, LARGE_STYLE, rows, FORMATTING),
    )
    patterns = ("gap_markdown", "closes_markdown", "rdpo_gap_markdown")
    return Suite("multipref-formatting", "MultiPref with formatting declared", panels, patterns)


def _multipref_ablation() -> Suite:
    weighted = (
        Row("Reliability weights", Condition("reliability"), "one"),
        Row(
            "Group-DRO DPO, parts of 2",
            Condition("group_dro_parts"),
            "one",
            note="weights normalized within micro-batches of 2, as the published code does, where the paper's "
            "definition has the whole step",
        ),
    )
    rows = (
        DPO,
        *_declaring(
            "length",
            POOLED,
            Row("BA-DPO (pooled, warm)", Condition("pooled_warm"), "first"),
            Row("BA-DPO (theta_k only)", Condition("per_annotator")),
            Row("BA-DPO (shuffled ids)", Condition("shuffled_ids"), "one"),
            SHARED_MEAN,
            Row("BA-DPO (shared mean, warm)", Condition("shared_mean_warm"), "first"),
        ),
        Row("R-DPO (0.02)", Condition("rdpo_strong"), "first"),
        replace(RDPO, seeds="first"),
        replace(SAMPO, seeds="first"),
        *weighted,
        *_beyond_the_paper("multipref-ablation"),
    )
    columns = {
        **TOKENS,
        **RM,
        "same": "heldout.length.same",
        "cross": "heldout.length.cross",
        "mean theta": "theta.length.level",
        "theta of the length in words": "theta.length_words.level",
        "votes (length)": "votes.length.all.accuracy",
    }
    panels = (
        Panel("tab:abl_multipref", QWEN, STYLE, rows, columns, "sd"),
        Panel("app:abl_multipref", WEIGHTS_TITLE, STYLE, weighted, GROUP_WEIGHTS, "sd"),
    )
    patterns = ("free_length", "warm_length", "strong_rdpo")
    return Suite("multipref-ablation", "MultiPref, length declared: every arm", panels, patterns)


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
    return Suite("votes", "Held-out votes predicted", panels, ("votes_ceiling", "votes_chance"))


def _lora() -> Suite:
    def adapted(label: str, arm: str, variant: str, rate_factor: float) -> Row:
        condition = Condition(arm, variant=variant, overrides=(*LORA, ("rate_factor", rate_factor)))
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
    return Suite("lora", "LoRA beside full fine-tuning", (panel,), ("lora_rate",))


def _mistral() -> Suite:
    panels = (
        Panel("tab:mistral", "Signed-UltraFeedback", OTHER, (DPO, *BA), NAMES),
        Panel(
            "tab:mistral",
            "MultiPref, length",
            OTHER_STYLE,
            (DPO, *_declaring("length", *BA)),
            LENGTH,
        ),
    )
    patterns = ("amplifies_names", "removes_names", "removes_length", "gap_length")
    return Suite("mistral", "Another model family", panels, patterns)


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
    columns = {
        "t": "anchor:woman.asked",
        **WOMAN,
        **BLACK,
        "p(woman), whole names": "anchor:woman.achieved",
        "p(black), whole names": "anchor:black.achieved",
        "signed": "sampled.signed",
        "tokens": "tokens.mean",
        **RM_MINUS,
        "KL to the source, as published": "anchor:moved.kl_source.per_token",
        **DIVERGENCES,
        "gap": "heldout.any.gap",
        "rounds": "anchor:woman.rounds",
    }
    panel = Panel("tab:offset", QWEN, SIGNED, tuple(rows), columns)
    return Suite("offset", "A fixed offset applied to the DPO policy, with no annotator", (panel,))


def _beyond() -> Suite:
    started = (("bias.warm_start", "audit"),)
    rows = (
        DPO,
        *BA,
        Row("Pooled from the audit's level", Condition("pooled", "", "audit", started)),
        Row("Shared mean from the audit's level", Condition("shared_mean", "", "audit", started)),
    )
    columns = {
        **RATES,
        "distance (woman)": "distance:rates.woman.rate",
        "distance (black)": "distance:rates.black.rate",
        **KL,
        "same-group": "heldout.any.same",
        **VOTES,
    }
    # over data seeds one training seed each
    first_only = tuple(replace(row, seeds="one") for row in rows)
    others = (
        Panel("beyond", f"Data seed {seed}", Corpus("signed", data_seed=seed), first_only, columns)
        for seed in (1, 2)
    )
    panels = (Panel("beyond", "Data seed 0", SIGNED, rows, columns), *others)
    return Suite("beyond", "Beyond the paper's own removal", panels)


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
        _beyond(),
    )
}


def known(kind: str, name: str, names: Collection[str]) -> str:
    """A name that is known; another one is refused with the likeliest and with all that are."""
    if name not in names:
        raise ConfigError(
            f'there is no {kind} "{name}".{did_you_mean(name, list(names))} Known: {", ".join(names)}'
        )
    return name
