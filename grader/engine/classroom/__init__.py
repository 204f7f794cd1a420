"""Submissions come in, records and pages go out; verdicts are reached elsewhere."""
