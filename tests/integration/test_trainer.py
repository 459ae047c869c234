"""What the controller adds to OpenRLHF's trainer and no run is needed to see."""

from __future__ import annotations

from oger_recipe.patches import apply_training_patches, apply_vllm_import_patches

apply_training_patches()
apply_vllm_import_patches()

from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import pytest  # noqa: E402

from oger_recipe.plugin.trainer import OgerPPOTrainer  # noqa: E402


def test_of_the_best_weights_the_newest_alone_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self, metrics, step, states) -> None:
        if metrics["better"]:
            (tmp_path / f"best_global_step{step}_hf").mkdir()

    monkeypatch.setattr(OgerPPOTrainer.__base__, "save_best_checkpoint", save)
    trainer = object.__new__(OgerPPOTrainer)
    trainer.args = SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path)))
    (tmp_path / "global_step3_hf").mkdir()
    for step, better in ((1, True), (2, True), (3, False), (10, True), (11, False)):
        trainer.save_best_checkpoint({"better": better}, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_global_step10_hf", "global_step3_hf"]
