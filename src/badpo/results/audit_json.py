"""Types for the content of audit.json; docs/audit.md explains the keys.

A figure is None if the votes do not identify it. On a page that may be shared, figures about few people and counts
below five are also None. Numbers may be NumPy scalars in memory; they are converted to Python numbers when the JSON
file is written.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from badpo.data.attributes import Config
from badpo.data.problems import Severity

Ends = list[float | None]  # lower and upper end of an interval


class LogOddsRow(TypedDict):
    """Log-odds that the response with an attribute wins, with a 95 % confidence interval."""

    log_odds: float | None
    ci_low: float | None
    ci_high: float | None


class Voters(TypedDict):
    """How many annotators and people cast the votes behind a figure, and whether few people cast most of the votes."""

    n_annotators: int
    n_people: int
    is_dominated: bool


class VoteFigure(Voters):
    """Voters behind a figure that compares two sides, and whether the figure and earlier figures together reveal votes.

    ``n_people_least`` is the number of people who chose the less popular side.
    """

    n_people_least: int
    differs_by_few: bool


class SwapPairRow(VoteFigure, LogOddsRow):
    """Bias toward an attribute, estimated from swap pairs, in which the quality of the responses cancels out."""

    n_votes: int
    assumes: str


class TieRow(Voters):
    """How ties affect an attribute's log-odds; `badpo.auditing.dependence.estimate_tie_effects` defines the figures."""

    n: int
    differing_share: float
    alike_share: float
    size_p: float
    annotators_p: float
    is_selective: bool
    log_odds: float
    log_odds_half: float
    log_odds_low: float
    log_odds_high: float


class CrossVotesRow(LogOddsRow):
    """Figures of an attribute, computed only from votes on comparisons whose responses differ in the attribute."""

    cross_share: float
    n_cross: int | None
    n_prompts: int
    win_rate: float | None
    interval: str | None
    naive_ci_low: float | None
    naive_ci_high: float | None
    odds: float | None


class AttributeRow(CrossVotesRow, VoteFigure):
    """The pool's bias toward an attribute: `badpo.auditing.pool_bias.pool_attributes` defines the figures."""

    name: str
    scope: str
    population_ci: Ends
    joint: LogOddsRow
    quality_adjusted: SwapPairRow | None
    collinear_with: list[str]
    ties: TieRow | None
    verdict: str | None


class FeatureRow(VoteFigure, LogOddsRow):
    """Bias toward an undeclared feature: `badpo.auditing.pool_bias.scan_features` defines the figures."""

    feature: str
    cross_share: float
    n_cross: int | None
    win_rate: float | None
    q_value: float
    beyond_declared: LogOddsRow | None
    advice: str


class TauRow(TypedDict):
    """Between-annotator standard deviation tau with its 95 % confidence interval."""

    tau: float | None
    tau_ci: Ends


class GroupRow(TauRow):
    """A group of annotators who share no comparisons with other groups: its annotators, its people, and its tau."""

    n: int
    n_people: int


ClassRow = TypedDict(  # difference between an annotator class and the pool mean, with its interval
    "ClassRow",
    {
        "class": str,
        "n_people": int,
        "is_dominated": bool,
        "n": int,
        "offset": float | None,
        "ci_low": float | None,
        "ci_high": float | None,
    },
)


class StatusCounts(TypedDict):
    """Share of informative judgments, number of annotators by status, and number of people with an estimate."""

    informative_share: float | None
    n_estimated: int
    n_insufficient: int
    n_no_information: int
    n_separated: int
    n_people_estimated: int


class SharedBiasRow(TypedDict):
    """The shared bias: confidence intervals, number of annotators, and the reason why it is known or unknown."""

    shared_bias: float | None
    shared_bias_ci: list[float] | None
    shared_bias_ci_beyond: list[float] | None
    n_shared_bias: int
    n_people_shared_bias: int
    absolute: bool
    absolute_why: str


class SumRow(LogOddsRow):
    """Sum of pooled bias and merit, its interval, and how many votes are needed to separate bias from merit."""

    n: int
    beside_models: bool
    needed: int


class PoolRow(StatusCounts, TauRow, SharedBiasRow):
    """Figures about the annotators' biases toward one attribute."""

    components: int
    n_flagged: int
    is_beside_reliability: bool
    unit: float
    most_units: float
    reliability: float | None
    refused: dict[str, str]
    caveat: str
    equal_biases_p: float | None
    is_divided: bool
    groups: list[GroupRow]
    classes: list[ClassRow]
    class_test_p: float | None
    recommendation: str | None
    recommendation_reason: str
    sum: SumRow | None


class ModelRow(TypedDict):
    """The bias of a model that cast votes as an annotator; ``annotators.parquet`` has the same columns."""

    model: str
    attribute: str
    n_judgments: int
    n_cross: int
    n_informative: int
    raw_rate: float | None
    deviation: float | None
    ci_low: float | None
    ci_high: float | None
    shrunk: float | None
    post_low: float | None
    post_high: float | None
    flag: bool
    status: str
    reliability: float | None
    reliability_low: float | None
    reliability_high: float | None
    flag_reliability: bool
    both_orders: int
    same_share: float | None
    origin: NotRequired[str]  # name of the value that counts as zero on a page, such as "pool mean"


class AssignmentRow(TypedDict):
    """Test of whether comparisons were assigned to annotators at random, based on covariates from the table.

    ``p_value`` is the p-value of the covariate that differs most between annotators, times the number of covariates.
    `badpo.estimation.alternative_estimators.ExchangeTest` defines ``smallest`` and ``power``. ``reason`` says why the
    audit does not report differences between annotators; if the audit reports them, ``reason`` is empty.
    """

    p_value: float
    covariate: str
    smallest: float
    power: float
    reason: str


class GraphRow(TypedDict):
    """Groups of annotators who share comparisons: number of groups, largest sizes, and number of other annotators."""

    n: int
    sizes: list[int]
    outside: int


AnchorRow = TypedDict(  # gold annotators, their judgments by attribute, and tests of whether their biases are equal
    "AnchorRow",
    {
        "n": int,
        "n_people": int,
        "class": str | None,
        "annotators": list[str],
        "n_cross": dict[str, int],
        "equal_biases_p": dict[str, float],
    },
)


class ReliabilityRow(TypedDict):
    """Reliability of the annotators: test of equal reliability, between-annotator standard deviation, and more."""

    p_value: float
    spread: float | None
    n_estimated: int
    n_flagged: int
    is_used: bool
    is_unknown: bool
    is_hardly_known: bool
    why: str
    has_camps: bool
    is_by_models: bool


class Checks(TypedDict):
    """The estimator, and the results of checking its assumptions."""

    assignment: AssignmentRow | None
    estimator: dict[Literal["quality", "why"], str]
    components: dict[Literal["informative"], dict[str, GraphRow]]
    anchors: AnchorRow | None
    reliability: ReliabilityRow | None


class LabelChanges(TypedDict):
    """How many labels and pairs would change without a bias: posterior mean and 95 % credible interval."""

    attribute: str | None
    n_contested: int
    labels: list[int] | None
    pairs: list[int] | None


class VotesNeededRow(TypedDict):
    """Numbers of votes that the median annotator needs for an interval with a given half-width."""

    attribute: str
    informative_votes: float
    judgments: float
    half_width: float


class ProblemRow(TypedDict):
    """A problem or a notice (`badpo.data.problems.Problem`)."""

    code: str
    what: str
    where: str
    remedy: str
    severity: Severity
    count: NotRequired[int]


class BothOrdersRow(Voters):
    """Number of comparisons that annotators judged in both orders, and the share of them with the same answer."""

    n: int
    same_share: float | None


class DroppedRow(TypedDict):
    """How many judgments were excluded for one reason, and how many annotators made them."""

    reason: str
    n: int
    n_annotators: int
    is_dominated: bool


class VotesOfAnnotators(TypedDict, total=False):
    """Median and maximum number of judgments per annotator, and maximum per person; a page shows only the median."""

    median: float
    max: int
    most_of_people: int


class TableFacts(TypedDict):
    """Whether the table of votes names its annotators, and the number of annotators."""

    has_annotators: bool
    n_annotators: int


class DataFacts(TableFacts, total=False):
    """Facts about the table of votes."""

    source: str
    fingerprint: str | None
    n_judgments: int
    n_comparisons: int
    n_prompts: int
    n_people: int
    is_dominated: bool
    n_dropped: int
    dropped: list[DroppedRow]
    votes_per_comparison: dict[str, int]
    judgments_per_annotator: VotesOfAnnotators
    unanimous_share: float | None
    agreement: Mapping[str, float | None]  # the figures of `badpo.estimation.significance.PoolAgreement`
    both_orders: BothOrdersRow | None


class Settings(TypedDict):
    """Settings of an audit."""

    attributes: Sequence[Config]
    rho: float
    fdr: float
    quality: NotRequired[str | None]
    min_informative: NotRequired[int]


class Decision(TypedDict):
    """Whether a bias is significant, whether other attributes explain the bias, and what to do about it."""

    is_sure: bool
    is_explained: bool
    advice: Literal["declare", "watch", "nothing"]


class AuditedBiases(TypedDict):
    """The parts of an audit from which the findings about the pool's biases are written."""

    settings: Settings
    data: DataFacts
    attributes: list[AttributeRow]
    pool: dict[str, PoolRow]
    withheld: NotRequired[list[str]]  # attributes that a page omits
    decisions: NotRequired[
        dict[str, Decision]
    ]  # decision about each attribute, made before the page's figures were rounded


class AuditParts(AuditedBiases):
    """The parts that ``audit.json`` and the page have in common."""

    schema: str
    version: str
    models: list[ModelRow]
    flips: list[LabelChanges]
    next: dict[Literal["votes_needed"], list[VotesNeededRow]]
    warnings: list[ProblemRow]
    scan: list[FeatureRow]
    annotators_file: str


class AuditSummary(AuditParts):
    """Content of ``audit.json``."""

    about_single_people: bool
    checks: Checks


class PageGroups(TypedDict):
    """Groups of annotators on a page: "none", "one" or "several", and the sizes of the largest groups."""

    n: str
    sizes: list[int]
    outside: int


class PageChecks(TypedDict):
    """Checks of an audit that a page shows."""

    estimator: dict[Literal["quality", "why"], str]
    groups: dict[str, PageGroups]
    anchors: dict[Literal["n"], int] | None
    reliability: ReliabilityRow | None


class AuditPage(AuditParts):
    """Content of the page that may be shared: rounded figures, none of which is about fewer than five people.

    ``step`` is the rounding step of the estimates. ``absent_features`` are scanned features in which no two compared
    responses differ. ``has_withheld_features`` tells whether the page omits a feature because too few people voted.
    """

    checks: PageChecks
    absent_features: list[str]
    has_withheld_features: bool
    step: float


class ExamplePair(TypedDict):
    """Excerpts of a pair of answers, and the votes on the pair (`badpo.auditing.impact.choose_example_pairs`)."""

    attribute: str
    prompt: str
    carries: bool
    n_votes: int
    n_annotators: int
    n_people: int
    chosen: str
    other: str
    n_chosen: int
