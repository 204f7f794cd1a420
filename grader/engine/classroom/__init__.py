"""Submissions come in, records and pages go out; it never reaches a verdict itself."""
