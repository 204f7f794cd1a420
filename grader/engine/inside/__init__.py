"""What runs in the student's process: it reports to the judge, decides nothing, and is not trusted."""
