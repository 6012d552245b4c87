from __future__ import annotations

import numpy as np
import pytest

from badpo.data.bias_files import without_annotators

NAMES = ["ann_a", "ann_b", "ann_c", "ann_d"]
CLASSES = ["x", "y", "y", "x"]


def files(parts, classes=CLASSES, seed=0) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    shapes = {"mean": (2,), "class_offset": (2, 2), "deviation": (4, 2)}
    tensors = {part: rng.normal(size=shapes[part]).astype(np.float32) for part in parts}
    tensors |= {
        "fixed": rng.normal(size=(4, 2)).astype(np.float32),
        "mask": np.array([1, 1, 0, 1], dtype=np.float32),
    }
    description = {
        "format": 1,
        "annotators": NAMES,
        "annotator_class": classes,
        "parts": list(parts),
        "extra": {},
    }
    return description, tensors


def theta(description, tensors) -> dict[str, np.ndarray]:
    """Theta of each annotator by the formula of the bias term."""
    classes = description["annotator_class"] or []
    labels = list(dict.fromkeys(classes))
    found = {}
    for k, name in enumerate(description["annotators"]):
        learned = np.zeros(2)
        if "mean" in tensors:
            learned = learned + tensors["mean"]
        if "class_offset" in tensors:
            learned = learned + tensors["class_offset"][labels.index(classes[k])]
        if "deviation" in tensors:
            learned = learned + tensors["deviation"][k]
        found[name] = tensors["mask"][k] * learned + tensors["fixed"][k]
    return found


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("mean",),
        ("deviation",),
        ("mean", "deviation"),
        ("class_offset",),
        ("mean", "class_offset", "deviation"),
    ],
)
@pytest.mark.parametrize(
    "gone",
    [{"ann_a"}, {"ann_a", "ann_d"}, {"ann_b", "ann_c"}, {"ann_a", "ann_b"}, {"ann_a", "ann_b", "ann_c"}],
)
def test_everyone_elses_theta_stays(parts, gone):
    description, tensors = files(parts)
    before = theta(description, tensors)
    left, values = without_annotators(description, tensors, gone)
    after = theta(left, values)
    assert set(after) == set(NAMES) - gone
    for name, row in after.items():
        np.testing.assert_allclose(row, before[name], rtol=1e-6)
    assert left["extra"] == {"annotators_forgotten": len(gone)}
    assert tensors["fixed"].shape == (4, 2)


@pytest.mark.parametrize(
    "gone", [{"ann_a"}, {"ann_a", "ann_b"}, {"ann_b", "ann_c"}, {"ann_a", "ann_b", "ann_c"}]
)
@pytest.mark.parametrize(
    "parts", [("mean", "class_offset", "deviation"), ("mean", "deviation"), ("class_offset",)]
)
def test_the_bias_term_loads_what_is_left(parts, gone, tmp_path):
    import hashlib
    import json

    pytest.importorskip("torch")
    from safetensors.numpy import save

    from badpo.objective.bias import BiasTerm

    description, tensors = files(parts)
    left, values = without_annotators(description | {"attributes": ["p", "q"]}, tensors, gone)
    content = save(values)
    (tmp_path / "bias.safetensors").write_bytes(content)
    (tmp_path / "bias.json").write_text(json.dumps(left | {"sha256": hashlib.sha256(content).hexdigest()}))
    bias = BiasTerm.load(tmp_path)
    assert list(bias.parts) == left["parts"]
    np.testing.assert_allclose(
        bias.theta().detach().numpy(), np.array(list(theta(left, values).values())), rtol=1e-5, atol=1e-6
    )


def test_nobody_is_left():
    description, tensors = files(("mean",))
    assert without_annotators(description, tensors, set(NAMES)) is None


def test_a_second_time_adds_up():
    once = without_annotators(*files(("deviation",)), {"ann_a"})
    twice = without_annotators(*once, {"ann_d"})
    assert twice[0]["extra"] == {"annotators_forgotten": 2}


def test_those_held_at_zero_are_forgotten_by_name_too():
    description, tensors = files(("mean",))
    description["gold_annotators"] = ["ann_c", "ann_d"]
    left, _ = without_annotators(description, tensors, {"ann_c"})
    assert left["gold_annotators"] == ["ann_d"]
    assert "gold_annotators" not in without_annotators(*files(("mean",)), {"ann_c"})[0]
