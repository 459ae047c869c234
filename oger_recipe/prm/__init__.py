"""From labelled steps of reasoning to a process reward model (PRM)."""
