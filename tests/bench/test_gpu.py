"""The bench of a GPU, tried on a processor at a tiny size."""

import pytest

pytest.importorskip("trl")

from bench import gpu, training


@pytest.mark.slow
def test_both_sides_are_measured_on_the_same_judgments():
    trl, badpo = gpu.speed("tiny", "grouped", 2, 4)
    assert badpo["ratio_vs_trl"] == badpo["judgments_per_second"] / trl["judgments_per_second"]
    n_read = [side["tokens_per_second"] * side["seconds_per_step"] for side in (trl, badpo)]
    # TRL reads each of a comparison's four votes
    assert n_read[0] > 4 * n_read[1] > 0


@pytest.mark.slow
def test_loss_and_gradients_are_compared_with_those_of_trl_in_fp32():
    differences = {(row["side"], row["precision"]): row for row in gpu.agreement("tiny")}
    assert differences["TRL", "fp32"]["rel_grad_diff"] == 0
    assert 0 < differences["badpo", "fp32"]["rel_grad_diff"] < training.LARGEST_DIFFERENCE
    assert differences["TRL", "bf16"]["rel_grad_diff"] > training.LARGEST_DIFFERENCE
