"""What several files with checks of 11_when_it_hangs use."""

# Where the answer to a question is that needs the fix.
FIXED = "Run the story's cell with your fix in it, and read the log of the rank that failed, to its last line."
