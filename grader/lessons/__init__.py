"""The lessons: of each its checks, what of them runs on ranks, its texts, and other answers that test the checks."""
