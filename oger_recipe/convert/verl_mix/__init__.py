"""The commands of OGER and LUFFY, which train with a branch of verl."""
