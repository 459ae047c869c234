"""What vLLM's engine process imports first, in place of the script of the Ray worker that starts it (CPU only)."""

from oger_recipe.imports import without_garbage_collection

with without_garbage_collection():
    from oger_recipe.patches import apply_vllm_import_patches

    apply_vllm_import_patches()

    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
