"""Audit of annotator bias from the votes alone, without a model: tables, checks, warnings and a report page."""

from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.auditing.watch import AuditMonitor

# The function `audit` is imported eagerly because its module has the same name.

__all__ = ["AuditMonitor", "AuditResult", "audit"]
