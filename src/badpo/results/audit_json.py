"""Types of the parts of audit.json; docs/audit.md explains the keys.

A figure is None if the votes do not identify it. On a page that may be shared, figures about few people are None, and
counts below five are None too. The code that computes a row may use numbers of numpy; JSON has Python's numbers.
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
    """Numbers of annotators and people behind a figure, and whether few people cast most of its votes."""

    n_annotators: int
    n_people: int
    is_dominated: bool


class VoteFigure(Voters):
    """Voters of a figure about two sides, and whether the figure reveals votes in combination with earlier figures.

    ``n_people_least`` is the number of people who chose the less popular side.
    """

    n_people_least: int
    differs_by_few: bool


class SwapPairRow(VoteFigure, LogOddsRow):
    """Bias toward an attribute, estimated from swap pairs, in which quality cancels out."""

    n_votes: int
    assumes: str


class TieRow(Voters):
    """Effect of omitting ties on an attribute: `badpo.auditing.dependence.estimate_tie_effects` defines the figures."""

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
    """Figures of an attribute that depend only on the votes on comparisons whose sides differ."""

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
    """Numbers of annotators and people, and tau, for a group of annotators whom no votes connect with other groups."""

    n: int
    n_people: int


ClassRow = TypedDict(  # the difference of an annotator class from the pool mean, with its interval
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
    """Share of informative judgments, number of annotators with each status, and number of people with an estimate."""

    informative_share: float | None
    n_estimated: int
    n_insufficient: int
    n_no_information: int
    n_separated: int
    n_people_estimated: int


class SharedBiasRow(TypedDict):
    """Shared bias with confidence intervals, numbers of annotators, and the reason if the shared bias is not known."""

    shared_bias: float | None
    shared_bias_ci: list[float] | None
    shared_bias_ci_beyond: list[float] | None
    n_shared_bias: int
    n_people_shared_bias: int
    absolute: bool
    absolute_why: str


class SumRow(LogOddsRow):
    """Pooled sum of bias and merit with its confidence interval, and the number of votes needed to separate the two."""

    n: int
    beside_models: bool
    needed: int


class PoolRow(StatusCounts, TauRow, SharedBiasRow):
    """Figures of the annotators for one attribute."""

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
    origin: NotRequired[str]  # the zero of the biases on a page


class AssignmentRow(TypedDict):
    """Result of testing, with covariates from the table, whether comparisons were assigned to annotators at random.

    ``p_value`` is the p-value of the covariate that differs most between annotators, times the number of covariates.
    `badpo.estimation.alternative_estimators.ExchangeTest` defines ``smallest`` and ``power``. ``reason`` says why the
    audit does not report differences between annotators; ``reason`` is empty if the audit reports them.
    """

    p_value: float
    covariate: str
    smallest: float
    power: float
    reason: str


class GraphRow(TypedDict):
    """Groups of annotators who share comparisons: number of groups, largest sizes, and annotators without a group."""

    n: int
    sizes: list[int]
    outside: int


AnchorRow = TypedDict(  # gold annotators, and by attribute their judgments and the p-value that they do not differ
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
    """Reliability of the annotators: test of equality, between-annotator standard deviation, and further figures."""

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
    """The estimator, and the checks of its assumptions."""

    assignment: AssignmentRow | None
    estimator: dict[Literal["quality", "why"], str]
    components: dict[Literal["informative"], dict[str, GraphRow]]
    anchors: AnchorRow | None
    reliability: ReliabilityRow | None


class LabelChanges(TypedDict):
    """Mean and 95 % credible interval of the numbers of labels and pairs that would change without a bias."""

    attribute: str | None
    n_contested: int
    labels: list[int] | None
    pairs: list[int] | None


class VotesNeededRow(TypedDict):
    """Numbers of votes that the median annotator needs for an interval of a half-width."""

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
    """Comparisons that annotators judged in both orders, and the share with the same answer."""

    n: int
    same_share: float | None


class DroppedRow(TypedDict):
    """Number of omitted judgments with one reason, and of their annotators."""

    reason: str
    n: int
    n_annotators: int
    is_dominated: bool


class VotesOfAnnotators(TypedDict, total=False):
    """Numbers of judgments of the median annotator, of any annotator and of any person; a page has the median only."""

    median: float
    max: int
    most_of_people: int


class TableFacts(TypedDict):
    """Whether the table of votes names its annotators, and their number."""

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
    """Whether a bias is significant, and not explained by the other attributes, and the advice that follows."""

    is_sure: bool
    is_explained: bool
    advice: Literal["declare", "watch", "nothing"]


class AuditedBiases(TypedDict):
    """The parts of an audit on which the findings about the pool's biases depend."""

    settings: Settings
    data: DataFacts
    attributes: list[AttributeRow]
    pool: dict[str, PoolRow]
    withheld: NotRequired[list[str]]  # attributes that a page leaves out
    decisions: NotRequired[
        dict[str, Decision]
    ]  # of each attribute, computed before a page rounded the figures


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
    """Groups of annotators as a page shows them: no, one or several groups, and sizes of the largest groups."""

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
    """Content of the page that may be shared: rounded figures, and no figures about fewer than five people.

    ``step`` is the rounding step of the estimates. ``absent_features`` are scanned features in which no responses
    differ, and ``has_withheld_features`` is whether the page omits features because of few voters.
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
