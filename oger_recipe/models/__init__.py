"""Reward models: judges that write a verdict, heads that give a number, and the places where they run."""
