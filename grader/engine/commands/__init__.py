"""The user interface: the commands of `./workbook`, the loop of `watch`, and the functions that notebook cells call."""
