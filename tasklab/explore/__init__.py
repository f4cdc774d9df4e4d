"""Widgets for a running notebook."""
