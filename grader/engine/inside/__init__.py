"""What runs in the student's process: it reports to the judge, never decides, and is believed in nothing."""
