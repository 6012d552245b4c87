"""Audit of annotator bias from the votes alone, without a model: tables, checks, warnings and a report page."""

from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.auditing.watch import AuditMonitor

# The function is imported eagerly because the function and its module have the same name.

__all__ = ["AuditMonitor", "AuditResult", "audit"]
