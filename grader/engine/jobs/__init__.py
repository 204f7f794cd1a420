"""Batch files and launchers: what a scheduler would start, and starting it; it knows nothing about verdicts."""
