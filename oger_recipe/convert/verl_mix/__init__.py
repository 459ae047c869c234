"""The commands of OGER, LUFFY, ExGRPO and HPT, which train with a branch of verl."""
