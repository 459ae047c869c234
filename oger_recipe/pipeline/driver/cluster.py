"""Prints the resources of the Ray cluster at RAY_ADDRESS as JSON: ``python -m oger_recipe.pipeline.driver.cluster``.

For machine.py. A process of its own: Ray ends the one in which it cannot join.
"""

import json
import logging

import ray

if __name__ == "__main__":
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    print(json.dumps(ray.cluster_resources()))
