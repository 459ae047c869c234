"""The process that the user starts, and the watcher beside it: Ray is started, the run followed, its end explained.

Importing this package prepares nothing: install.py alone imports OpenRLHF, once Ray has started, and the watcher has
to start at once.
"""
