"""Tidy records, the papers' numbers beside them, and a verdict on every claim. Needs no torch."""
