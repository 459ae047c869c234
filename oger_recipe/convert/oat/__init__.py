"""The training commands of OAT and of Understand-R1-Zero, which is built on it: PPO, GRPO and Dr. GRPO."""
