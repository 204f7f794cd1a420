"""What several files with checks of streaming_training use."""

# ---------------------------------------------------------------------------------------------------
# TODOs 5 and 6: which reader

BATCH = 12
