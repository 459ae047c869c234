"""OGER inside OpenRLHF: the only package that imports it. Subclasses of its trainer, experience maker, policy actor
and rollout engine, put in place of its classes by install.py before its command line runs."""
