"""Examples kept in an accelerator's memory: a client's are selected and normalised there, without transfers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.data import Examples
from fedpriv.training.sequential import LocalData, ids_of, scale_and_shift

#: Share of the memory free at loading: with four workers on one GPU, a third of it is left for training.
SHARE = 0.25


def fits(part: Examples, device: torch.device) -> bool:
    """Whether the device has its own memory and room for all examples."""
    return has_room(part.inputs.nbytes if part.features is None else part.features.nbytes, device)


def has_room(num_bytes: int, device: torch.device) -> bool:
    """Whether the device has its own memory, and so many bytes are a share of what is free there."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return bool(num_bytes <= SHARE * free)


class Resident:
    """All examples of a split on a device, pictures as uint8 [n, channels, height, width], or their public features as
    float32 [n, d, 1, 1], a table's rows float32 [n, d], token ids int64 [n, t], with their targets.
    """

    def __init__(
        self,
        part: Examples,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        vocabulary: int | None = None,
    ) -> None:
        found = part.inputs if part.features is None else part.features[np.arange(len(part))][:, :, None, None]
        read = np.array(found)
        self.inputs = (torch.from_numpy(read) if vocabulary is None else ids_of(read, vocabulary)).to(device)
        self.targets = torch.from_numpy(np.array(part.targets)).to(device)
        self._scaled = part.features is None and len(mean) > 0
        if self._scaled:
            both = scale_and_shift(mean, std)
            self._scale, self._shift = (torch.from_numpy(values).to(device) for values in both)

    def chosen(self, rows: np.ndarray) -> LocalData:
        """What a model reads of these rows (int64 [b]), as `fedpriv.data.load.inputs` gives it."""
        return self.read(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.inputs.device))

    def read(self, index: Tensor) -> LocalData:
        """As `chosen`, for rows (int64 [b]) that are on the device already."""
        if not self._scaled:  # features, a table's rows and token ids are used as they are
            return LocalData(self.inputs[index], self.targets[index])
        return LocalData(self.inputs[index].float().mul_(self._scale).sub_(self._shift), self.targets[index])

    def reader(self, rows: np.ndarray) -> tuple[Callable[[Tensor], LocalData], torch.device]:
        """What reads some of these rows (int64 [n]) by their places among them, and where it takes places."""
        index = torch.from_numpy(rows).to(self.inputs.device)
        return lambda places: self.read(index[places]), index.device
