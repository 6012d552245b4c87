"""Draw tables, charts and pages from files alone. This package imports no model."""
