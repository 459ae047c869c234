"""What makes a run's processes ready sooner."""

import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hang import HANG_S

from oger_recipe.base.cpu import kv_cache_bytes
from oger_recipe.base.imports import without_garbage_collection
from oger_recipe.pipeline.engine.rollout_engine import _main_module

ROOT = Path(__file__).parents[2]


def test_the_collector_pauses_for_imports_and_goes_on_after_them():
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_garbage_collection():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("rows", "length", "limit", "expected"),
    [
        # 2 layers x 2 heads x 8 x 2 (keys and values) x 2 bytes = 128 bytes a token; blocks of 128 tokens, one spare
        (3, 129, None, (3 * 2 + 1) * 128 * 128),
        (3, 128, None, (3 + 1) * 128 * 128),
        (2**20, 128, None, 2**30),
        (2**20, 128, "2", 2**31),
        (2**20, 128, "0.5", 2**29),
    ],
)
def test_the_kv_cache_holds_the_rows_that_run_at_a_time_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, length: int, limit: str | None, expected: int
):
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | shape))
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    if limit:
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", limit)
    assert kv_cache_bytes(str(tmp_path), rows, length) == expected


def test_models_that_share_no_heads_have_a_kv_cache_too(tmp_path: Path):
    shape = {"n_layer": 3, "n_head": 4, "n_embd": 32}  # 3 layers x 4 heads x 8 x 2 x 2 bytes = 384 bytes a token
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | shape))
    assert kv_cache_bytes(str(tmp_path), 1, 1) == 2 * 128 * 384


def test_a_spawned_process_imports_the_named_module_in_place_of_the_main_one():
    before = sys.modules["__main__"].__spec__
    ours, theirs = multiprocessing.Pipe()
    tell = "import sys; pipe.send(sys.modules['__mp_main__'].__file__)"
    with _main_module("oger_recipe.base.seeds"):
        process = multiprocessing.get_context("spawn").Process(target=exec, args=(tell, {"pipe": theirs}))
        process.start()
    process.join(30)
    assert ours.poll() and ours.recv().endswith("oger_recipe/base/seeds.py")
    assert sys.modules["__main__"].__spec__ is before


@pytest.mark.parametrize("way", ["PYTHONPATH", "folder"])
def test_a_checkout_uses_its_own_patches_whichever_one_is_installed(tmp_path: Path, way: str):
    """In the process itself and in one that it spawns."""
    for folder in ("oger_recipe", "patches"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    by_path = way == "PYTHONPATH"
    script = tmp_path / "elsewhere" / "look.py" if by_path else tmp_path / "look.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import multiprocessing\n"
        "def look():\n"
        "    import oger_recipe.patches.guard as guard\n"
        "    print(guard.__file__, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    look()\n"
        "    process = multiprocessing.get_context('spawn').Process(target=look)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script)] if by_path else [sys.executable, "-m", "look"]
    run = {"capture_output": True, "text": True, "timeout": HANG_S, "cwd": ROOT.parent if by_path else tmp_path}
    done = subprocess.run(command, **run, env=environment | ({"PYTHONPATH": str(tmp_path)} if by_path else {}))
    assert done.stdout.split() == [str(tmp_path / "patches" / "guard.py")] * 2, done.stderr


@pytest.mark.parametrize(
    "module",
    ["cli.data", "data.rows", "data.command_prepare", "data.command_validate", "pipeline.driver.launch",
     "pipeline.driver.watcher"],
)  # fmt: skip
def test_the_data_commands_and_the_start_of_ray_wait_for_no_torch(module: str):
    code = f"import sys, oger_recipe.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout == "False\n", done.stderr
