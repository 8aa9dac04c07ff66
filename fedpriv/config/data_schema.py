"""Options of the data: the set, its public features and its division among clients."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.options import Options

#: Data sets that are tables and no pictures.
TABLES = ("table", "breast_cancer", "diabetes", "docstrings", "docstrings_next", "practices")
#: Tables and texts of the hub whose schema comes with the project: its file in conf/schema.
HUB_TABLES = {
    "scikit-learn/adult-census-income": "adult",
    "SetFit/20_newsgroups": "newsgroups",
    "flwrlabs/shakespeare": "shakespeare",
    "pacovaldez/stackoverflow-questions": "stackoverflow",
}
#: Public facts of the sets that everybody has: (training examples, classes). Others are known once read.
KNOWN_SETS = {
    "digits": (1437, 10),
    "mnist": (60_000, 10),
    "fashion_mnist": (60_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
}


class DatasetConfig(Options):
    name: Literal[
        "digits",
        "mnist",
        "fashion_mnist",
        "cifar10",
        "cifar100",
        "image_folder",
        "huggingface",
        "on_nodes",
        "custom",
        "table",
        "breast_cancer",
        "diabetes",
        "docstrings",
        "docstrings_next",
        "practices",
    ]
    root: str | None = Field(
        description="a table's file, or a folder of pictures (torchvision's layout, class folders, the hub's files)"
    )
    download: bool = Field(description="fetch a torchvision set or a set of the hub if it is not there")
    auxiliary: int = Field(ge=0, description="public examples cut from the test set for methods that need them")
    size: int | None = Field(default=None, ge=4, le=1024, description="own pictures, hub: side length of every picture")
    channels: Literal[1, 3] = Field(default=3, description="own pictures, hub: 1 grey, 3 colour")
    background: Literal["white", "black"] = Field(
        default="white", description="own pictures, hub: what is seen through transparent pixels"
    )
    white_level: int | None = Field(
        default=None,
        ge=255,
        le=65535,
        description="own pictures, hub: white beyond 8 bits, 4095 of 12 bits (null: as the file says, or 65535)",
    )
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="own data, hub: test share without a test split")
    # Not `name`: that says which source reads the examples, and names the run's folder.
    hub_name: str | None = Field(default=None, description="huggingface: name of a set of the hub, uoft-cs/cifar10")
    revision: str | None = Field(default=None, description="huggingface: branch, tag or commit that is fetched")
    subset: str | None = Field(default=None, description="huggingface: one of the set's configurations")
    image_column: str | None = Field(default=None, description="huggingface: column of pictures (null: the only one)")
    label_column: str | None = Field(default=None, description="huggingface: column of labels (null: the only one)")
    train_split: str | None = Field(default=None, description="huggingface: split to train on (null: train)")
    test_split: str | None = Field(
        default=None, description="huggingface: split to test on (null: test or validation; as train_split: divided)"
    )
    schema_file: str | None = Field(
        default=None,
        description="table, also of the hub: YAML file that says what each column means; on_nodes: this machine's copy",
    )
    schema_digest: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="on_nodes: SHA-256 of the schema that all machines have"
    )
    separator: Literal["auto", "comma", "semicolon", "tab", "pipe"] = Field(
        default="auto", description="table, CSV: sign between cells (auto: the one under which the header fits)"
    )
    decimal: Literal["point", "comma"] = Field(default="point", description="table, CSV: sign before a fraction")
    encoding: str = Field(default="utf-8", description="table, CSV: encoding of its text")
    path: str | None = Field(default=None, description="custom: dotted path of the user's own function")
    train_examples: int | None = Field(
        default=None, ge=1, description="train on so many of the training examples, drawn by seed (null: all)"
    )
    split: str | None = Field(
        default=None, description=".npz with rows `train` and `test` of all examples, in place of the set's own split"
    )
    classes: tuple[str, ...] = Field(default=(), description="on_nodes: names of the class folders, in label order")
    examples: tuple[int, ...] = Field(default=(), description="on_nodes: declared training examples of each client")
    test_root: str | None = Field(
        default=None, description="on_nodes: the server's test examples: a table's file, or one folder for each class"
    )
    cache: str | None = Field(
        default=None, description="folder of decoded and encoded data (null: $FEDPRIV_CACHE or ~/.cache/fedpriv)"
    )

    @property
    def is_table(self) -> bool:
        """Whether examples are rows of a table."""
        if self.name in ("on_nodes", "huggingface") and self.schema_file is not None:
            return True
        return self.name in TABLES or (self.name == "huggingface" and self.hub_name in HUB_TABLES)

    @field_validator("name", mode="before")
    @classmethod
    def _hub_has_an_option_of_its_own(cls, name: Any) -> Any:
        if isinstance(name, str) and "/" in name:
            words = "a set of the hub is chosen by dataset=huggingface dataset.hub_name=..."
            raise OptionError("dataset.name", name, words)
        return name

    @field_validator("classes", mode="before")
    @classmethod
    def _folders_may_be_numbered(cls, classes: Any) -> Any:
        """[0, 1] are names of folders too."""
        if isinstance(classes, list | tuple):
            return tuple(str(name) if type(name) is int else name for name in classes)
        return classes


# --- features --------------------------------------------------------------------------------------------


class FeaturesConfig(Options):
    """Public features between pictures and model (`fedpriv.data.features`)."""

    name: Literal["none", "gradients", "processes", "backbone"]
    map: Literal["none", "strokes", "pink", "drawings"] = Field(
        default="none",
        description="strokes: onto directions in which pen strokes differ; pink: whitened by 1/f noise; drawings: of "
        "features=processes, whitened by drawings of random processes",
    )
    normalise: Literal["none", "moments"] = Field(
        default="none", description="moments: each picture is set upright and scaled by the moments of its own ink"
    )
    mirror: bool = Field(
        default=False, description="the mean of the features of a picture and of its mirror image; not of characters"
    )
    dims: Any = Field(
        default=150, description="of the map, 1 to 599; map=strokes also auto: by epsilon and the number of messages"
    )
    exponent: float = Field(
        default=0.5, ge=0, le=4, description="h of a direction's weight: strokes (b/(1+b))^h, pink variance^-h"
    )
    weights: str | None = Field(
        default=None, description="backbone: file of a state dict (.safetensors, .pt, .pth), or .onnx"
    )
    weights_sha256: str | None = Field(
        default=None, pattern="[0-9a-f]{64}", description="backbone: what its SHA-256 must be; null: what it is"
    )
    trained_on: str | None = Field(
        default=None, max_length=500, description="backbone: what the weights were trained on, for every report"
    )
    architecture: str = Field(
        default="resnet18",
        description="backbone: a network of torchvision, timm/NAME, huggingface, onnx, or package.module.Class",
    )
    layer: str | None = Field(
        default=None, description="backbone: whose output is read; null: the input of the last linear layer"
    )
    size: int | None = Field(
        default=None, ge=8, le=1024, description="backbone: pictures are resized to size x size; null: as they are"
    )
    mean: list[float] = Field(
        default=[0.485, 0.456, 0.406], min_length=3, max_length=3, description="backbone: of red, green, blue in 0..1"
    )
    std: list[float] = Field(
        default=[0.229, 0.224, 0.225], min_length=3, max_length=3, description="backbone: as mean; each at least 0.0001"
    )

    @field_validator("dims", mode="after")
    @classmethod
    def _dims_are_a_number_or_auto(cls, dims: Any) -> Any:
        if dims != "auto" and (type(dims) is not int or not 1 <= dims <= 599):
            raise OptionError("features.dims", dims, "must be from 1 to 599, or auto")
        return dims

    @field_validator("mean", mode="after")
    @classmethod
    def _mean_is_near_a_pixel(cls, mean: list[float]) -> list[float]:
        if not all(abs(value) <= 1e3 for value in mean):
            raise OptionError("features.mean", mean, "must be from -1000 to 1000")
        return mean

    @field_validator("std", mode="after")
    @classmethod
    def _std_is_positive(cls, std: list[float]) -> list[float]:
        if not all(1e-4 <= value < 1e6 for value in std):
            raise OptionError("features.std", std, "must be from 0.0001 to a million")
        return std


# --- partition -------------------------------------------------------------------------------------------


class PartitionBase(Options):
    test_fraction: float = Field(ge=0, lt=1, description="share of each client's examples kept as its local test set")


class IidPartition(PartitionBase):
    name: Literal["iid"]


class DirichletPartition(PartitionBase):
    name: Literal["dirichlet"]
    alpha: float = Field(gt=0, description="concentration; small = every client has few classes")
    min_examples: int = Field(ge=1, description="smallest number of examples a client may get")


class PathologicalPartition(PartitionBase):
    name: Literal["pathological"]
    classes_per_client: int = Field(ge=1, description="classes that a client holds")


class ShardsPartition(PartitionBase):
    name: Literal["shards"]
    shards_per_client: int = Field(ge=1, description="label-sorted blocks that a client holds")


class ResampledPartition(PartitionBase):
    name: Literal["resampled"]
    examples_per_client: int = Field(
        ge=1, description="examples that every client draws for itself, so that clients share examples"
    )


class ColumnPartition(PartitionBase):
    name: Literal["column"]
    column: str = Field(description="column whose values are the clients")


class PartitionerPartition(PartitionBase):
    name: Literal["partitioner"]
    partitioner: str = Field(
        description="a partitioner of flwr-datasets, or package.module.NAME of one of your own, or of a function "
        "(labels, num_clients, seed) -> rows of each client"
    )
    arguments: dict[str, Any] | None = Field(default=None, description="what it is given beside the usual")
    column: str | None = Field(
        default=None, description="column of the table that a partitioner divides by (null: the target)"
    )


PartitionConfig = Annotated[
    IidPartition
    | DirichletPartition
    | PathologicalPartition
    | ShardsPartition
    | ResampledPartition
    | ColumnPartition
    | PartitionerPartition,
    Field(discriminator="name"),
]


def check_hub(dataset: DatasetConfig) -> None:
    """The name and the revision become part of an address and of a folder's name."""
    name, revision = dataset.hub_name, dataset.revision
    if name is None and dataset.root is None:
        words = "huggingface needs the name of a set of the hub, as in uoft-cs/cifar10, or its files in dataset.root"
        raise OptionError("dataset.hub_name", "null", words)
    if name is not None and not re.fullmatch(rf"{HUB_WORD}(/{HUB_WORD})?", name):
        raise OptionError("dataset.hub_name", name, "must be the name of a set of the hub, as in uoft-cs/cifar10")
    if revision is not None and not re.fullmatch(rf"{HUB_WORD}(/{HUB_WORD})*", revision):
        raise OptionError("dataset.revision", revision, "must be a branch, a tag or a commit")


#: A part of a name on the hub: no way out of a folder.
HUB_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
