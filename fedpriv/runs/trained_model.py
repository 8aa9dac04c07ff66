"""A finished run's model, with everything that using it needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpriv.common.checksums import MODEL_FILES, SUMS, damage
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.config.compose import read_config
from fedpriv.config.question_words import refuse_answers
from fedpriv.data.cache import cache_folder
from fedpriv.data.decoding import Encoded, read_picture
from fedpriv.data.features import Features, model_input
from fedpriv.data.table_schema import TableSchema, schema_of, with_tokenizer
from fedpriv.data.table_source import form_of, task_of
from fedpriv.runs.folder import TOKENIZER
from fedpriv.runs.table_model import TableModel
from fedpriv.training.language_models import text_for
from fedpriv.training.models import build_model
from fedpriv.training.sequential import normalise
from fedpriv.training.trained_part import frozen_tensors


@dataclass(frozen=True)
class TrainedModel:
    """A trained classifier with everything needed to use it."""

    module: nn.Module
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    features: Features | None = None
    drawn_on: tuple[str, int | None] = ("white", None)  # dataset.background, dataset.white_level

    def probabilities(self, images: NDArray[np.uint8]) -> Tensor:
        """Class probabilities [n, classes] of uint8 pictures [n, channels, height, width]. Raises `DataError`."""
        try:
            images = np.asarray(images)
        except ValueError as error:
            raise DataError(f"images: no array of pictures ({error})") from None
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            wanted = f"uint8 [n, {', '.join(map(str, self.shape))}]"
            raise DataError(f"images: pictures are {wanted}, got {images.dtype} {list(images.shape)}")
        self.module.eval()
        with torch.inference_mode():
            if self.features is None:
                read = normalise(images, self.mean, self.std)
            else:
                read = torch.from_numpy(self.features(images))[:, :, None, None]
            result: Tensor = self.module(read).softmax(1)
        return result

    def read_picture(self, path: str | Path) -> NDArray[np.uint8]:
        """A picture file in the model's size and colours, uint8 [channels, height, width]: the bytes that training
        would have read of it. Raises `DataError`.
        """
        channels, height, width = self.shape
        found = read_picture(Encoded(str(path), str(path)), channels, (height, width), *self.drawn_on)
        if isinstance(found, str):
            raise DataError(f"{path}: {'not a picture that can be read' if found == 'not a picture' else found}")
        return np.ascontiguousarray(found)


def load_model(folder: str | Path) -> TrainedModel | TableModel:
    """The model of a finished run's folder. Raises `RunFolderError`."""
    config, path = read_config(folder), Path(folder)
    refuse_answers(config, folder)
    if not (path / "model.safetensors").is_file():
        raise RunFolderError(f"{folder}: the run has not finished, it has no model.safetensors")
    try:
        facts = json.loads((path / "classes.json").read_text())
        parameters = load_file(path / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise RunFolderError(f"{folder}: the model cannot be read ({error})") from None
    shape = tuple(facts["shape"])
    reads = shape if "schema" in facts else model_input(config.features, shape)  # type: ignore[arg-type]
    schema, task, text = None, None, None
    if "schema" in facts:
        schema = _schema(facts["schema"], path)
        task = task_of(schema)
        text = text_for(schema.vocabulary, task)
    module = build_model(config.model, reads, len(facts["classes"]), config.seed, text, False)
    trained = {name: value.shape for name, value in module.named_parameters()}
    whole = trained | {name: value.shape for name, value in frozen_tensors(module).items()}
    allowed = [whole, trained] if config.model.train == "all" else [whole]  # of earlier versions without buffers
    if {name: value.shape for name, value in parameters.items()} not in allowed:
        raise RunFolderError(f"{folder}: model.safetensors is not of the model that config.yaml names")
    if (path / SUMS).exists() and (wrong := damage(path, MODEL_FILES)) is not None:
        raise RunFolderError(f"{folder}: the model is damaged ({wrong})")
    module.load_state_dict(parameters, strict=False)
    if schema is not None and task is not None:
        return TableModel(module, schema, task, form_of(config.dataset))
    used = config.features.name != "none"
    features = Features(config.features, shape, cache_folder(config.dataset)) if used else None
    classes, mean, std = (tuple(facts[name]) for name in ("classes", "mean", "std"))
    drawn_on = (config.dataset.background, config.dataset.white_level)
    return TrainedModel(module, classes, shape, mean, std, features, drawn_on)


def _schema(said: Any, path: Path) -> TableSchema:
    """Of a run's folder, which holds a copy of the tokenizer's file. Raises `RunFolderError`."""
    for column in said["columns"].values():
        if "sha256" in column:
            column["tokenizer"] = str(path / TOKENIZER)
    try:
        return with_tokenizer(schema_of(said, str(path / "classes.json")), path)
    except OptionError as error:
        raise RunFolderError(f"{path}: the schema or tokenizer cannot be read ({error})") from None
