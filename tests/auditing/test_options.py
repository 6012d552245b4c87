"""What an audit may be asked for."""

from __future__ import annotations

import pytest

from badpo.auditing.people import AuditOptions
from badpo.data.problems import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "conditonal"}, 'Did you mean "conditional"?'),
        ({"quality": "fixed"}, "name the column"),
        ({"quality": "fixed:"}, "name the column"),
        ({"quality": "random:score"}, "name the column"),
        ({"rho": -0.1}, "rho is a size"),
        ({"rho": float("nan")}, "rho is a size"),
        ({"fdr": 0}, "fdr is a share"),
        ({"fdr": 1.0}, "fdr is a share"),
        ({"anchors": "worker 7"}, "write [id]"),
        ({"anchors": ("worker 7",), "anchor_class": "gold"}, "not both"),
        ({"min_informative": 0}, "1 or more"),
    ],
)
def test_what_is_refused_and_why(options, message):
    with pytest.raises(ConfigError) as caught:
        AuditOptions(**options)
    assert message in str(caught.value)


def test_the_column_of_a_fixed_quality():
    assert AuditOptions(quality="fixed:score", anchors=["a", "b"], rho=0).quality_column == "score"
    assert AuditOptions(quality="random").quality_column is None
    assert AuditOptions().quality_column is None
