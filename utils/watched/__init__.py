"""What each rank is doing, so that `./workbook run` can say who waits for whom: `rank` notes, `record` holds."""
