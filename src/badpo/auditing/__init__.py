"""Who leans toward what, from the votes alone: tables, checks, warnings and a page, without a model."""

from __future__ import annotations

# at once, not when first used: the function and its module have one name
from badpo.auditing.audit import audit
from badpo.auditing.monitor import AuditMonitor
from badpo.auditing.options import Flag
from badpo.auditing.result import AuditResult

__all__ = ["AuditMonitor", "AuditResult", "Flag", "audit"]
