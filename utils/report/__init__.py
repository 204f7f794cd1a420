"""The report of a run: what it notes while it runs, that read again, its pictures, its page."""
