"""Who leans toward what, from the votes alone: tables, checks, warnings and a page, without a model."""

from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.auditing.watch import AuditMonitor

# at once, not when first used: the function and its module have one name

__all__ = ["AuditMonitor", "AuditResult", "audit"]
