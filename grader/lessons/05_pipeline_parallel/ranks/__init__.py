"""What the checks of 05_pipeline_parallel run on ranks, in the process of the student's code."""
