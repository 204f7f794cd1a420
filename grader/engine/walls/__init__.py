"""Limits what a stranger's code can reach, and makes a stranger's files safe to read; independent of the lessons."""
