"""Verifiers, what they say of a response, and the processes that grade, which can be killed."""
