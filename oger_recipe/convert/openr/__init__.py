"""The training command of OpenR: process rewards for steps of reasoning."""
