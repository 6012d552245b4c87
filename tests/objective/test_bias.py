import json

import pytest
import torch

from badpo.data.problems import ConfigError
from badpo.objective.bias import DESCRIPTION_FILE, TENSORS_FILE, VARIANTS, BiasFileError, BiasTerm

ATTRIBUTES = ["woman", "black"]
ANNOTATORS = ["ann_a", "ann_b", "ann_c", "ann_d"]
CLASSES = ["expert", "crowd", "crowd", "expert"]


def bias_term(variant: str, **options) -> BiasTerm:
    if variant == "class":
        options.setdefault("annotator_class", CLASSES)
    return BiasTerm(ATTRIBUTES, ANNOTATORS, VARIANTS[variant], **options)


def fill(bias: BiasTerm, seed: int = 0) -> BiasTerm:
    generator = torch.Generator().manual_seed(seed)
    for parameter in bias.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return bias


@pytest.mark.parametrize(
    ("variant", "classes", "mask", "kept"),
    [
        ("none", "xyyx", [1, 1, 1, 1], ""),
        ("pooled", "xyyx", [1, 1, 1, 1], "mean"),
        ("per_annotator", "xyyx", [1, 1, 1, 1], "deviation"),
        ("shared_mean", "xyyx", [1, 1, 1, 1], "mean deviation"),
        ("class", "xyyx", [1, 1, 1, 1], "mean class_offset deviation"),
        # of parts that divide the free annotators alike one is kept
        ("class", "xx", [1, 1], "mean deviation"),
        ("class", "xy", [1, 1], "mean class_offset"),
        ("per_annotator", "x", [1], "deviation"),
        ("shared_mean", "x", [1], "mean"),
        ("class", "x", [1], "mean"),
        # with one free annotator the mean and the deviation are the same number, taken twice
        ("shared_mean", "xyyx", [0, 0, 1, 0], "mean"),
        ("class", "xyyx", [0, 0, 1, 0], "mean"),
        ("class", "xyyx", [0, 1, 1, 0], "mean deviation"),
        ("class", "xyyx", [1, 1, 1, 0], "mean class_offset deviation"),
    ],
)
def test_a_variant_is_its_parts_and_starts_at_zero(variant, classes, mask, kept):
    options = dict(annotator_class=list(classes), mask=torch.tensor(mask))
    bias = BiasTerm(ATTRIBUTES, ANNOTATORS[: len(mask)], VARIANTS[variant], **options)
    shapes = {"mean": (2,), "class_offset": (len(set(classes)), 2), "deviation": (len(mask), 2)}
    found = {name: tuple(p.shape) for name, p in bias.named_parameters()}
    assert found == {part: shapes[part] for part in kept.split()}
    assert bias.parts == tuple(kept.split())
    assert bias.theta().shape == (len(mask), 2) and not bias.theta().any()


def test_theta_is_the_masked_sum_of_the_parts_plus_the_fixed_part():
    fixed = torch.arange(8.0).reshape(4, 2)
    bias = fill(bias_term("class", fixed=fixed, mask=torch.tensor([1.0, 0.0, 1.0, 1.0])))
    expected = bias.mean + bias.class_offset[[0, 1, 1, 0]] + bias.deviation
    expected[1] = 0
    torch.testing.assert_close(bias.theta(), (expected + fixed).double(), rtol=0, atol=1e-6)
    # one step moves the mean by as much as the free deviations together
    bias.theta().sum().backward()
    moved = bias.mean.grad, bias.class_offset.grad, bias.deviation.grad
    expected = [3.0], [[2.0], [1.0]], [[1.0], [0.0], [1.0], [1.0]]
    for gradient, each in zip(moved, expected, strict=True):
        assert torch.equal(gradient, torch.tensor(each).expand_as(gradient))


def test_the_logit_is_theta_times_the_difference_and_gradients_are_added_up_in_float64():
    bias = fill(bias_term("shared_mean", fixed=torch.tensor([0.5, 0.0])))
    annotator, delta = torch.tensor([3, 0, -1]), torch.tensor([[1.0, -1.0], [0.0, 1.0], [1.0, 1.0]])
    theta = bias.theta()
    expected = torch.stack([theta[3, 0] - theta[3, 1], theta[0, 1], theta.mean(dim=0).sum()])
    torch.testing.assert_close(bias(annotator, delta.double()), expected)
    assert bias(annotator, delta).dtype == torch.float32
    assert torch.equal(bias(annotator, delta.long()), bias(annotator, delta))
    # without parts it is DPO to the bit
    nothing = bias_term("none")(annotator, delta)
    assert not nothing.any() and not nothing.requires_grad
    # a sum of many small terms beside one large term loses the small ones in float32
    bias = BiasTerm(["g"], ["a"], ("mean",))
    delta = torch.full((4001, 1), 1e-4, dtype=torch.float32)
    delta[0] = 4096.0
    bias(torch.zeros(4001, dtype=torch.long), delta).sum().backward()
    assert bias.mean.grad.item() == pytest.approx(4096.4, abs=1e-3)


@pytest.mark.parametrize(
    ("parts", "started"),
    [
        (("mean", "deviation"), "mean"),
        (("deviation",), "deviation"),
        (("class_offset", "deviation"), "class_offset"),
    ],
)
def test_a_warm_start_sets_the_common_level_once(parts, started):
    bias = BiasTerm(ATTRIBUTES, ANNOTATORS, parts, annotator_class=CLASSES)
    bias.warm_start(torch.tensor([0.95, 0.70]))
    assert bias.theta().tolist() == [pytest.approx([0.95, 0.70])] * 4
    assert [name for name, p in bias.named_parameters() if p.any()] == [started]
    assert all(p.requires_grad and p.is_leaf for p in bias.parameters())


@pytest.mark.parametrize(
    ("variant", "start", "told"),
    [
        ("pooled", [0.5], r"needs the shape \(2,\); got \(1,\)"),
        ("none", [0.5, 0.5], "learns no theta"),
        ("pooled", [[0.0, 0.0]] * 3, r"needs the shape \(4, 2\); got \(3, 2\)"),
        ("pooled", [[0.0, float("inf")]] * 4, "theta of black is not finite"),
    ],
)
def test_a_start_that_cannot_be_is_refused(variant, start, told):
    bias = bias_term(variant)
    with pytest.raises(ConfigError, match=told):
        (bias.start_at if isinstance(start[0], list) else bias.warm_start)(torch.tensor(start))


def test_a_start_is_divided_over_the_parts_and_kept_from_those_held_at_zero():
    theta = torch.tensor([[1.0, 2.0], [3.0, -1.0], [5.0, 0.0], [9.0, 9.0]])
    bias = bias_term("class", mask=torch.tensor([1, 1, 1, 0]))
    bias.start_at(theta)
    torch.testing.assert_close(bias.theta(), torch.cat([theta[:3], torch.zeros(1, 2)]).double())
    torch.testing.assert_close(bias.mean, torch.tensor([3.0, 1 / 3]))
    torch.testing.assert_close(bias.class_offset[0], theta[0] - bias.mean)  # of the experts one is free
    torch.testing.assert_close(bias.deviation.sum(dim=0), torch.zeros(2))
    pooled = bias_term("pooled", mask=torch.tensor([1, 1, 0, 0]))
    pooled.start_at(torch.tensor([[1.0, 2.0], [3.0, -1.0], [float("nan"), 0.0], [9.0, 9.0]]))
    assert pooled.mean.tolist() == [2.0, 0.5]


def test_the_summary_keeps_raw_composed_and_centred_apart():
    bias = bias_term("class")
    bias.mean.data[0] = 1.0
    bias.class_offset.data[0, 0] = 0.5
    bias.deviation.data[3, 1] = 1.0
    summary = json.loads(json.dumps(bias.summary()))
    zero = {"woman": 0.0, "black": 0.0}
    assert summary["parameters"] == {
        "mean": {"woman": 1.0, "black": 0.0},
        "class_offset": {"expert": {"woman": 0.5, "black": 0.0}, "crowd": zero},
        "deviation": dict.fromkeys(ANNOTATORS, zero) | {"ann_d": {"woman": 0.0, "black": 1.0}},
    }
    assert summary["theta"]["ann_d"] == {"woman": 1.5, "black": 1.0}
    assert summary["theta_mean"] == {"woman": 1.25, "black": 0.25}
    assert summary["centred_deviations"]["ann_d"] == {"woman": 0.25, "black": 0.75}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_term_comes_back_to_the_bit(tmp_path, variant, dtype):
    options = {"fixed": torch.randn(4, 2), "mask": torch.tensor([1.0, 0.0, 1.0, 1.0])}
    bias = fill(bias_term(variant, annotator_class=CLASSES, **options).to(dtype), seed=5)
    extra = {"data": "sha256:…", "attributes": [{"type": "length", "ratio": 1.5}]}
    for name in ("one", "two"):
        bias.save(tmp_path / name, extra)
    loaded = BiasTerm.load(tmp_path / "one")
    for name in ("parts", "annotators", "attributes", "annotator_class", "gold_annotators"):
        assert getattr(loaded, name) == getattr(bias, name)
    assert loaded.extra == extra and loaded.gold_annotators == ("ann_b",)
    torch.testing.assert_close(loaded.state_dict(), bias.state_dict(), rtol=0, atol=0)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert files.keys() == {DESCRIPTION_FILE, TENSORS_FILE}
    assert json.loads(files[DESCRIPTION_FILE])["gold_annotators"] == ["ann_b"]


def of_fewer_people(folder):
    description = json.loads((folder / DESCRIPTION_FILE).read_text())
    description["annotators"].pop()
    (folder / DESCRIPTION_FILE).write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda folder: (folder / "other" / TENSORS_FILE).rename(folder / TENSORS_FILE),
            r"bias\.safetensors does not agree with bias\.json \(the checksum differs\)\. Restore both files",
        ),
        (of_fewer_people, r"(?s)not agree with bias\.json .*deviation.*\[3, 2\]"),
        (lambda folder: (folder / DESCRIPTION_FILE).write_text("{"), "not agree with bias.json"),
        (lambda folder: (folder / DESCRIPTION_FILE).write_text("{}"), "not agree with bias.json"),
        (lambda folder: (folder / DESCRIPTION_FILE).unlink(), r"bias\.json does not exist"),
        (lambda folder: (folder / TENSORS_FILE).unlink(), r"bias\.safetensors does not exist"),
    ],
)
def test_files_that_are_not_of_one_another_are_refused(tmp_path, change, told):
    fill(bias_term("shared_mean")).save(tmp_path)
    fill(bias_term("shared_mean"), seed=1).save(tmp_path / "other")
    change(tmp_path)
    with pytest.raises(BiasFileError, match=told):
        BiasTerm.load(tmp_path)


HAVE_NONE = dict(parts=["class_offset"], annotator_class=["x", None, "x", None])
WRONG = {
    "4 of 4 .* columns: {annotator_class: NAME}": dict(parts=["class_offset"]),
    r"2 of 4 have none \(first: ann_b\)": HAVE_NONE,
    "3 of 4 have none": HAVE_NONE | dict(annotator_class=["x"]),
    "one class too many": HAVE_NONE | dict(annotator_class=["x"] * 5),
    'Did you mean "deviation"': dict(parts=["deviations"]),
    'annotator "a" occurs twice': dict(annotators=["a", "b", "a"]),
    'attribute "g" occurs twice': dict(attributes=["g", "g"]),
    "at least one annotator": dict(annotators=[]),
    r"\(2,\) or \(4, 2\); got \(3,\)": dict(fixed=torch.ones(3)),
    "0 or 1 for each of the 4": dict(mask=torch.full((4,), 0.5)),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_term_is_refused_with_a_remedy(message):
    usual = dict(attributes=ATTRIBUTES, annotators=ANNOTATORS, parts=["mean"])
    with pytest.raises(ConfigError, match=message):
        BiasTerm(**usual | WRONG[message])
