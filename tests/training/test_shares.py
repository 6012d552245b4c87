"""In evaluation each judgment is counted once, and no process waits for another's forward."""

from __future__ import annotations

import types

import numpy as np
import pytest

from badpo.data.judgments import Judgments
from badpo.training.batches import evaluation_batches
from tests import tiny


@pytest.mark.parametrize(("world", "size"), [(1, 4), (2, 3), (3, 5), (40, 2)])
def test_every_judgment_once_and_as_many_batches_everywhere(world, size):
    judgments = Judgments.read(tiny.votes(n_comparisons=6, per_comparison=4))
    batches = [
        evaluation_batches(
            judgments,
            types.SimpleNamespace(world_size=world, process_index=rank, per_device_eval_batch_size=size),
        )
        for rank in range(world)
    ]
    assert len({len(mine) for mine in batches}) == 1
    assert all(len(votes) <= size for mine in batches for votes in mine)
    order = np.concatenate([votes for mine in batches for votes in mine])
    assert sorted(order) == list(range(judgments.n_votes))
    # the votes on a comparison stand together, so that it goes through the model once or twice
    assert (np.diff(judgments.votes["comparison"].to_numpy()[order]) >= 0).all()
