"""The old place of `verify`, which others import; verifiers are in grading/verifiers/."""

from oger_recipe.grading.verifiers import VERIFIERS, verify

__all__ = ["VERIFIERS", "verify"]
