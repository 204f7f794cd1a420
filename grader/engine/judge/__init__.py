"""A lesson's checks and the ranks' evidence come in, verdicts go out; student code never runs here."""
