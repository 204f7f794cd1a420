"""What people see: the commands of `./workbook`, the loop of `watch`, what a notebook's cell asks for."""
