"""Estimators of annotator bias and reliability that need only votes."""
