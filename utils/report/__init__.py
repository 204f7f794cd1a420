"""The report of a run: recorder, reader, figures, page."""
