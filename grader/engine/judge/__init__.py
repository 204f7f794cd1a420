"""A lesson's checks and what ranks left come in, verdicts go out; it never runs a student's line."""
