"""Recorded results: a chapter's experiments in the preset `full`, and the sides of its claims."""
