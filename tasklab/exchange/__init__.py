"""Checkpoints from elsewhere read, task vectors written for others."""
