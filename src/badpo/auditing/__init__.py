"""Audit of annotator bias from the votes alone, without a model: tables, checks, warnings and a report page."""

from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.auditing.watch import AuditMonitor

# `audit` is imported eagerly, because the name `badpo.auditing.audit` would otherwise mean the module.

__all__ = ["AuditMonitor", "AuditResult", "audit"]
