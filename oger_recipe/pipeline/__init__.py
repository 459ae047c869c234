"""OGER inside OpenRLHF: the only package that imports it, cut by the processes of a run.

Subclasses of OpenRLHF's trainer, experience maker, actors and rollout engine are put in place of its classes by
driver/install.py before its command line runs. Importing controller, policy or engine prepares the process that does:
patches come first, whichever module is asked for. Modules beside these folders are what all of them share.
"""
