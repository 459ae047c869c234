"""The OGER recipe: exploration rewards and teacher trajectories for reinforcement learning with OpenRLHF."""

import os
import sys
from pathlib import Path

from oger_recipe.base.moved import MovedFinder

__version__ = "0.1.0"

# How long torch's threads spin for each other before they sleep; read when torch loads libgomp, so it comes first.
# Work of 7 s, twice at once on the same two cores: 64 s each with libgomp's default, 14 s with this.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# In a checkout patches/ lies beside this package, in a wheel inside it. Another checkout may be the installed one.
_CHECKOUT = Path(__file__).parents[1]
if (_CHECKOUT / "patches" / "guard.py").is_file():
    __path__.append(str(_CHECKOUT))

sys.meta_path.append(MovedFinder())
