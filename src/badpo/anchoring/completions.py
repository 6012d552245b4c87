"""How often a signature that a policy begins is completed with a name of the pool, as answers are decoded.

Temperature and top-p act on a tilted policy as on any other. A policy that signs nearly always with a few names loses
its unlikely misspellings to top-p; spread over all names of the pool it keeps some of them, so that fewer signatures
hold a name. A shift of the pool as a whole, against everything else that may stand there, makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
from scipy.special import logit

from badpo.readouts.generation import sample

# A first name and the blank behind it are over within so many tokens.
NAME_TOKENS = 12
# A share that is nearer than this to the one that is held is the same, as far as a few hundred draws can tell.
CLOSE = 0.005
MOST_TRIES = 5


def completed_share(
    policy,
    tokenizer,
    contexts: Sequence[Sequence[int]],
    names: Container[str],
    temperature: float,
    top_p: float,
    seed: int,
    adjust: Callable | None = None,
) -> float:
    """Share of begun signatures that go on with a name of the pool when they are sampled."""
    written = sample(policy, tokenizer, contexts, NAME_TOKENS, temperature, top_p, seed=seed, adjust=adjust)
    firsts = [answer.text.split(maxsplit=1)[:1] for answer in written]
    n_names = sum(bool(first) and first[0] in names for first in firsts)
    return (n_names + 0.5) / (len(firsts) + 1)


def shift_of_the_pool(held: float, share_at: Callable[[float], float]) -> float:
    """Shift of the pool, in log-odds, at which signatures are completed as often as is held.

    Parameters
    ----------
    held : float
        Share to hold.
    share_at : function of shift to share
        With the same random numbers at every shift.

    Returns
    -------
    float
        The nearest of a few tries.

    Examples
    --------
    >>> from scipy.special import expit
    >>> round(shift_of_the_pool(0.98, lambda shift: expit(2.0 + shift)), 2)
    1.89
    """
    tried = [0.0]
    shares = [share_at(0.0)]
    while abs(shares[-1] - held) > CLOSE and len(tried) < MOST_TRIES:
        # one for one in log-odds
        tried.append(tried[-1] + float(logit(held) - logit(shares[-1])))
        shares.append(share_at(tried[-1]))
    return tried[int(np.argmin(np.abs(np.array(shares) - held)))]
