"""What several files with checks of 12_why_it_is_slow use."""

# Where the answer to a question is that needs both runs.
BOTH = (
    "Run the story's cell twice, with the given lines (`./workbook diff 12_why_it_is_slow` shows what you have changed)"
    " and with your fix, and compare."
)
