"""What the commands of all branches of verl have in common: flags and their rules."""
