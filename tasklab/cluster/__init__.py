"""Grids of fine-tuning runs, in order or on a Ray cluster."""
