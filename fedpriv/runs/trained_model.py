"""A finished run's model, with everything that using it needs."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, model_validator
from torch import Tensor, nn

from fedpriv.common.checksums import MODEL_FILES, SUMS, damage
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.common.run_files import bytes_in, fitting, is_file_in, mapping_in, shapes_in, tensors_in
from fedpriv.config.compose import read_config
from fedpriv.config.question_words import refuse_answers
from fedpriv.config.schema import Config
from fedpriv.data.cache import cache_folder
from fedpriv.data.decoding import Encoded, read_picture
from fedpriv.data.features import Features, model_input
from fedpriv.data.table_schema import TableSchema, schema_of, with_tokenizer
from fedpriv.data.table_source import form_of, task_of
from fedpriv.runs.folder import TOKENIZER
from fedpriv.runs.table_model import TableModel
from fedpriv.training.flat_model import Shape
from fedpriv.training.language_models import text_for
from fedpriv.training.models import build_model
from fedpriv.training.sequential import normalise
from fedpriv.training.trained_part import frozen_tensors


class Facts(BaseModel):
    """classes.json: the names of a model's classes or targets, the form of an example, of pictures mean and standard
    deviation of each channel, of a table its schema.
    """

    classes: tuple[str, ...] = Field(min_length=1, max_length=1_000_000)
    shape: tuple[Annotated[int, Field(strict=True, ge=1, le=2**24)], ...] = Field(min_length=1, max_length=3)
    mean: tuple[FiniteFloat, ...] = Field(default=(), max_length=16)
    std: tuple[FiniteFloat, ...] = Field(default=(), max_length=16)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _an_example_fits_into_memory(self) -> Facts:
        if math.prod(self.shape) > 2**28:
            raise ValueError(f"shape={list(self.shape)}: an example of more than {2**28} numbers")
        return self


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
    config, path = read_config(folder), Path(folder).absolute()
    refuse_answers(config, folder)
    if not (path / "model.safetensors").is_file():
        raise RunFolderError(f"{folder}: the run has not finished, it has no model.safetensors")
    with fitting(path):
        try:
            facts = Facts.model_validate(mapping_in(path, "classes.json"))
            shapes = shapes_in(path, "model.safetensors")
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder}: the model cannot be read ({error})") from None
        return _model(config, path, facts, shapes)


def _model(config: Config, path: Path, facts: Facts, shapes: dict[str, Shape]) -> TrainedModel | TableModel:
    shape: Any = facts.shape
    reads, schema, task, text = shape, None, None, None
    if facts.schema_ is None:
        reads = model_input(config.features, shape)
    else:
        schema = _schema(facts.schema_, path)
        task = task_of(schema)
        text = text_for(schema.vocabulary, task)

    def built() -> nn.Module:
        return build_model(config.model, reads, len(facts.classes), config.seed, text, False, statistics=True)

    if config.model.name != "custom":
        with torch.device("meta"), suppress(NotImplementedError):  # of what public weights are read into
            # Its form alone: config.yaml may name a model that no machine holds.
            _refuse_another(built(), shapes, config, path)
    module = built()
    _refuse_another(module, shapes, config, path)
    if is_file_in(path, SUMS) and (wrong := damage(path, MODEL_FILES)) is not None:
        raise RunFolderError(f"{path}: the model is damaged ({wrong})")
    module.load_state_dict(tensors_in(path, "model.safetensors"), strict=False)
    if schema is not None and task is not None:
        return TableModel(module, schema, task, form_of(config.dataset))
    used = config.features.name != "none"
    features = Features(config.features, shape, cache_folder(config.dataset)) if used else None
    drawn_on = (config.dataset.background, config.dataset.white_level)
    return TrainedModel(module, facts.classes, shape, facts.mean, facts.std, features, drawn_on)


def _refuse_another(module: nn.Module, shapes: dict[str, Shape], config: Config, path: Path) -> None:
    trained = {name: tuple(value.shape) for name, value in module.named_parameters()}
    whole = trained | {name: tuple(value.shape) for name, value in frozen_tensors(module).items()}
    allowed = [whole, trained] if config.model.train == "all" else [whole]  # of earlier versions without buffers
    if shapes not in allowed:
        raise RunFolderError(f"{path}: model.safetensors is not of the model that config.yaml names")


def _schema(said: Any, path: Path) -> TableSchema:
    """Of a run's folder, which holds a copy of the tokenizer's file. Raises `RunFolderError`."""
    for column in said["columns"].values():
        if column.get("tokenizer", "bytes") not in ("bytes", "words"):
            if "sha256" not in column:
                raise RunFolderError(f"{path}: classes.json names a tokenizer without its digest")
            bytes_in(path, TOKENIZER)  # a regular file of the folder, of its size
            column["tokenizer"] = str(path / TOKENIZER)
    try:
        return with_tokenizer(schema_of(said, str(path / "classes.json")), path)
    except OptionError as error:
        raise RunFolderError(f"{path}: the schema or tokenizer cannot be read ({error})") from None
