"""What each rank is doing, so that `./workbook run` can say which rank waits for which: `rank` writes notes, `record`
stores them."""
