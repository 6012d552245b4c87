"""Make tables, charts and pages from saved results. This package imports no model."""
