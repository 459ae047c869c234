"""sentence-transformers is imported without scikit-learn.

Upstream: sentence_transformers.util.similarity, which has pairwise_distances of sklearn.metrics for distances of numpy
arrays.
Why: scikit-learn takes more than a second of CPU, of the 15 s that a run needs to start on two cores.
Checked: sentence-transformers 6.2.0. Needed for as long as the import is not made where it is used.
"""

import importlib
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

from oger_recipe.base.imports import in_place_of


def apply() -> None:
    """Import sentence_transformers with a stand-in for scikit-learn, which imports the real one when it is called."""
    stand_ins = {name: module_from_spec(ModuleSpec(name, None)) for name in ("sklearn", "sklearn.metrics")}
    vars(stand_ins["sklearn.metrics"])["pairwise_distances"] = _pairwise_distances
    with in_place_of(**stand_ins):
        importlib.import_module("sentence_transformers")


def _pairwise_distances(*args, **kwargs):
    from sklearn.metrics import pairwise_distances

    return pairwise_distances(*args, **kwargs)
