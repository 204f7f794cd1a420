"""What a stranger's code may reach, and what a stranger wrote made safe to read; it knows no lesson's content."""
