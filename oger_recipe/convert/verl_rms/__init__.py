"""The commands of VeRL-with-RMs, a branch of verl that adds judges to rules."""
