"""The package's trial of a training, as a script for ranks without CUDA."""

from __future__ import annotations

import os

from oger_recipe.base.cpu import CPU_ENVIRONMENT

os.environ.update(CPU_ENVIRONMENT | {"OMP_NUM_THREADS": "1"})

from oger_recipe.pipeline.policy.trial import main, rows_of_step

__all__ = ["main", "rows_of_step"]

if __name__ == "__main__":
    main()
