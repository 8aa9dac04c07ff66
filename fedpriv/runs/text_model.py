"""What a model of next tokens says of texts: how well it foresees them, and how they go on.

Shapes: n texts, t tokens of an input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.data.table_rows import next_tokens, texts_of
from fedpriv.data.table_schema import TableSchema
from fedpriv.data.token_ids import TokenRule
from fedpriv.mechanisms.tasks import PADDING

if TYPE_CHECKING:
    import pyarrow as pa

#: Numbers of a batch's outputs; tokens by which a text is continued.
NUMBERS, FURTHER = 1 << 22, 16


@dataclass(frozen=True)
class TextModel:
    """A model of the next token with the schema of its run."""

    module: nn.Module
    schema: TableSchema

    def following(self, table: pa.Table, name: str) -> Tensor:
        """What the model says of the token after each text's last ones: float32 [n, vocabulary]."""
        return torch.cat([self._after(ids) for ids in self._last(table, name)])

    def continued(self, table: pa.Table, name: str, further: int = FURTHER) -> list[str]:
        """The most likely next token, and so on, `further` times: n texts; of an empty text nothing."""
        found = []
        for ids in self._last(table, name):
            window, added = ids, []
            for _ in range(further):
                shares = self._after(window)
                shares[:, 0] = -torch.inf  # padding follows nothing
                added.append(shares.argmax(1))
                window = _appended(window, added[-1])
            empty = (ids == 0).all(1)
            rows = torch.stack(added, 1).masked_fill(empty[:, None], 0)
            found += [self._rule.text(row) for row in rows.tolist()]
        return found

    def perplexity(self, table: pa.Table, name: str) -> NDArray[np.float64]:
        """exp of the mean cross-entropy of each text's tokens but the first, float64 [n]: of those that training would
        read. NaN for a text of one token or none.
        """
        column, length = table.column(str(self.schema.target.column)), self._length
        targets = torch.from_numpy(next_tokens(self.schema, column, name))
        losses, start = [], 0
        for _, texts in texts_of(column, name):
            for ids in self._batches(self._rule.ids(texts, length)):
                wanted = targets[start : start + len(ids)]
                outputs = self._outputs(ids)
                flat = functional.cross_entropy(
                    outputs.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=PADDING
                )
                losses.append(flat.view(wanted.shape).double().sum(1) / (wanted != PADDING).sum(1))
                start += len(ids)
        result: NDArray[np.float64] = torch.cat(losses).exp().numpy()
        return result

    # --- one batch -----------------------------------------------------------------------------------------

    @property
    def _rule(self) -> TokenRule:
        assert self.schema.tokens is not None
        return self.schema.tokens.rule

    @property
    def _length(self) -> int:
        return self.schema.num_inputs

    def _last(self, table: pa.Table, name: str) -> Iterator[Tensor]:
        for _, texts in texts_of(table.column(str(self.schema.target.column)), name):
            yield from self._batches(self._rule.ids(texts, self._length, last=True))

    def _batches(self, ids: NDArray[np.int32]) -> Iterator[Tensor]:
        rows = max(1, NUMBERS // (self._length * int(self.schema.vocabulary or 1)))
        return iter(torch.from_numpy(ids.astype(np.int64)).split(rows))

    def _outputs(self, ids: Tensor) -> Tensor:
        self.module.eval()
        with torch.inference_mode():
            outputs: Tensor = self.module(ids)
        return outputs

    def _after(self, ids: Tensor) -> Tensor:
        """Outputs of each row's last token [n, vocabulary]; of a row without tokens those of its first place."""
        last = ((ids != 0).sum(1) - 1).clamp(min=0)
        return self._outputs(ids)[torch.arange(len(ids)), last].clone()


def _appended(ids: Tensor, further: Tensor) -> Tensor:
    """Rows [n, t] with one token more behind the text; a full row loses its first."""
    full = (ids != 0).all(1)
    moved = torch.where(full[:, None], ids.roll(-1, 1), ids)
    place = (ids != 0).sum(1).clamp(max=ids.shape[1] - 1)
    return moved.scatter(1, place[:, None], further[:, None])
