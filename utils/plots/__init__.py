"""What notebooks draw: a file a lesson, and `base.py` for what several of them draw."""
