"""transformers is imported without scikit-learn, scipy and datasets, which it takes along wherever they are installed.

Upstream: transformers.utils.is_sklearn_available, is_scipy_available and is_datasets_available, asked at import by
transformers.generation.candidate_generator, transformers.data, transformers.loss and transformers.trainer.
Why: OpenRLHF imports these modules in every process; scikit-learn and scipy cost each of them more than a second of
CPU, datasets (with pandas) half a second, of the 30 s that a run needs to start on two cores. What they are for (an
assistant's acceptance curve, GLUE's metrics, the matching of object detection, transformers' own trainer) is not used
here. sentence-transformers, and who reads datasets, import their own where they are used.
Checked: transformers 5.15.0. Needed for as long as the imports are not made where they are used.
"""

import transformers.utils


def apply() -> None:
    """Make the three look absent to what transformers imports from now on in this process."""
    for name in ("is_sklearn_available", "is_scipy_available", "is_datasets_available"):
        setattr(transformers.utils, name, lambda: False)
