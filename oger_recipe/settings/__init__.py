"""What can be set: the recipe's own section, recipe files, ranges and checks."""
