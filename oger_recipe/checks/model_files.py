"""What is wrong with a model's folder, by its configuration and the heads of its weight files: nothing is loaded."""

import functools
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def fault(folder: Path, *, language_model: bool = False, own_code: bool = False) -> str | None:
    """Say why the model cannot be loaded; None where no fault is seen.

    language_model: an engine has to know its architecture, too; own_code: code that it brings may be run.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        return f"config.json cannot be read: {error}"
    if not isinstance(config, dict):
        return f"config.json is a {type(config).__name__}, not a mapping"
    return _unknown(config, language_model, own_code) or next(_faults_of_weights(folder), None)


def is_pickled(folder: Path) -> bool:
    """Say whether the weights are pickle alone, which is read with weights_only; where both are, safetensors is."""
    return not any(folder.glob("*.safetensors")) and any(folder.glob("pytorch_model*.bin"))


def parameters(folder: Path) -> int | None:
    """Count a model's parameters by the heads of its safetensors files; None where it has none."""
    tensors = [tensor for file in folder.glob("*.safetensors") for tensor in _tensors(file)]
    return sum(math.prod(tensor["shape"]) for tensor in tensors) or None


def adapter_parameters(folder: Path, rank: int) -> int:
    """Count the parameters of LoRA adapters of all matrices, at most: r (rows + columns) each."""
    shapes = [tensor["shape"] for file in folder.glob("*.safetensors") for tensor in _tensors(file)]
    return sum(rank * sum(shape) for shape in shapes if len(shape) == 2)


def _unknown(config: dict[str, Any], language_model: bool, own_code: bool) -> str | None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if own_code and config.get("auto_map"):
        return None
    version, kind = f"transformers {transformers.__version__}", config.get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        return f"its config.json has model_type {kind!r}, which {version} does not know"
    names = config.get("architectures") or []
    if language_model and not names:
        return "its config.json names no architectures, which the engine needs to choose the model's class"
    unknown = sorted(set(names) - _in_transformers()) if language_model else []
    return f"its config.json names the architecture {unknown[0]!r}, which {version} does not know" if unknown else None


@functools.cache
def _in_transformers() -> frozenset[str]:
    import transformers

    return frozenset(dir(transformers))  # which takes a tenth of a second


def _faults_of_weights(folder: Path) -> Iterator[str]:
    """Yield what would end the run when weights are loaded; whatever an index names has to be there."""
    for index in (folder / name for name in _INDICES if (folder / name).exists()):
        try:
            named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            yield f"{index.name} cannot be read: {error!r}"
            return
        yield from (f"{name} is missing, but {index.name} lists it" for name in named if not (folder / name).is_file())
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        yield "it has no weights (*.safetensors, or pytorch_model*.bin)"
    for file in files:
        size, whole = file.stat().st_size, _whole_size(file)
        if whole is None:
            yield f"{file.name} ({size:,} bytes) is not a complete weights file: copy or download it again"
        elif size != whole:
            yield f"{file.name} has {size:,} of {whole:,} bytes: copy or download it again"


def _whole_size(file: Path) -> int | None:
    """Return the bytes that a weight file says it has; None where its start or end is not of its kind."""
    if file.suffix == ".safetensors":
        tensors = _tensors(file)
        return _head(file)[0] + max(tensor["data_offsets"][1] for tensor in tensors) if tensors else None
    with file.open("rb") as opened:
        is_zip = opened.read(2) == b"PK"  # torch's format before version 1.6 is another one
    return file.stat().st_size if not is_zip or zipfile.is_zipfile(file) else None


def _tensors(file: Path) -> list[dict[str, Any]]:
    """Read what a safetensors file's head says of its tensors; none where it has no such head."""
    try:
        return [tensor for name, tensor in json.loads(_head(file)[1]).items() if name != "__metadata__"]
    except ValueError:
        return []


def _head(file: Path) -> tuple[int, bytes]:
    """Read where the tensors begin, and the JSON document in front of them."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return 8 + length, opened.read(length) if length < file.stat().st_size else b""
