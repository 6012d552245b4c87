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

    Parameters
    ----------
    judgments : Judgments
        Those to train on.

    Returns
    -------
    dict of attribute to (log-odds per unit or None, ``"swap pairs"`` or ``"offline"``)
        None where no vote is cross-group; not finite where all go one way.

    Examples
    --------
    >>> from badpo.attributes import Emoji
    >>> smile = "So. \U0001f642"
    >>> sides = [("So.", smile), *[(smile, "So.")] * 3]
    >>> rows = [{"prompt": f"{i}?", "chosen": a, "rejected": b} for i, (a, b) in enumerate(sides)]
    >>> level, source = audit_level(Judgments.read(rows, attributes=[Emoji()]))["emoji"]
    >>> round(level, 2), source
    (1.1, 'offline')
    """
    pairs = SwapPairs(judgments, carrier_sides(judgments.delta, judgments.cross_group()))
    found = {}
    for j, (name, offline) in enumerate(
        zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True)
    ):
        swap = pairs.log_odds(j)
        found[name] = (offline.log_odds, OFFLINE) if swap is None else (swap.log_odds, SWAP_PAIRS)
    return found
