"""The judge's side of the ranks: jobs come in; events, evidence and faults go out; marks are decided elsewhere."""
