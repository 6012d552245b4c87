"""The level that theta starts at when it starts at what the audit says: from swap pairs where there are any."""

from __future__ import annotations

from badpo.auditing.swap_pairs import SwapPairs
from badpo.data.judgments import Judgments
from badpo.estimation.pool import carrier_sides

SWAP_PAIRS, OFFLINE = "swap pairs", "offline"


def audit_level(judgments: Judgments) -> dict[str, tuple[float | None, str]]:
    r"""The log-odds of each attribute that the carrying side wins, and where they are read.

    On swap pairs, whose texts differ in the attribute alone, quality cancels. An attribute without any takes the
    log-odds of all cross-group judgments, which quality pulls toward zero, or to the side that it goes with.

    The log-odds are per unit: None where no vote is cross-group, not finite where all go one way.
    """
    pairs = SwapPairs(judgments, carrier_sides(judgments.delta, judgments.cross_group()))
    found = {}
    for j, (name, offline) in enumerate(
        zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True)
    ):
        swap = pairs.log_odds(j)
        found[name] = (offline.log_odds, OFFLINE) if swap is None else (swap.log_odds, SWAP_PAIRS)
    return found
