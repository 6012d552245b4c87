"""What an audit may be asked for."""

from __future__ import annotations

import pytest

from badpo.auditing.people import AuditOptions, Flag
from badpo.data.problems import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AuditOptions(quality="conditonal"), 'Did you mean "conditional"?'),
        (AuditOptions(quality="fixed"), "name the column"),
        (AuditOptions(quality="fixed:"), "name the column"),
        (AuditOptions(quality="joint:score"), "name the column"),
        (AuditOptions(shrink="normale"), "shrink must be one of"),
        (AuditOptions(shrink="none"), "add the flag rule bh"),
        (AuditOptions(flag=Flag(rho=-0.1)), "rho is a size"),
        (AuditOptions(flag=Flag(rho=float("nan"))), "rho is a size"),
        (AuditOptions(flag=Flag(fdr=0)), "fdr is a share"),
        (AuditOptions(flag=Flag(fdr=1.0)), "fdr is a share"),
        (AuditOptions(flag=Flag(rule="benjamini")), "flag rule must be one of"),
        (AuditOptions(anchors="worker 7"), "write [id]"),
        (AuditOptions(anchors=("worker 7",), anchor_class="gold"), "not both"),
        (AuditOptions(min_informative=0), "1 or more"),
    ],
)
def test_what_is_refused_and_why(options, message):
    with pytest.raises(ConfigError) as caught:
        options.check()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        AuditOptions(),
        AuditOptions(quality="fixed:score"),
        AuditOptions(shrink="none", flag=Flag(rule="bh")),
        AuditOptions(anchors=["a", "b"]),
        AuditOptions(anchor_class="gold", flag=Flag(rho=0)),
    ],
)
def test_what_is_taken(options):
    options.check()


def test_the_column_of_a_fixed_quality():
    assert AuditOptions(quality="fixed:score").quality_column == "score"
    assert AuditOptions(quality="joint").quality_column is None
    assert AuditOptions().quality_column is None
