"""The commands of `python -m tasklab`; what needs torch is imported when they run."""
