"""Models of text: a bag of words, a small GRU, a small transformer.

Shapes: b examples, t tokens, e width of a token's embedding, k outputs. Inputs are token ids, int64 [b, t], of a public
vocabulary; id 0 is padding, which no output depends on where it stands behind the text. Outputs are float [b, k], or
one for each token, [b, t, k], where the task is to predict the next token: those of a token follow from it and the
tokens before it alone.

Each is written in steps that `fedpriv.mechanisms.rowwise` proves to keep examples apart: an example's gradient then
costs what its tokens cost, however large the vocabulary is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import ModelConfig
from fedpriv.data.types import Dataset
from fedpriv.mechanisms.tasks import NextToken, Task

#: What a token that is padding adds to an attention's logits: a share of exp(-10^4), which float32 has as 0. (Minus
#: infinity would make a text without tokens NaN.)
UNSEEN = -1e4


@dataclass(frozen=True)
class Text:
    """What of a data set of text is public. vocabulary: number of token ids, padding among them; each: whether there is
    an output for each token.
    """

    vocabulary: int
    each: bool = False


def text_of(dataset: Dataset) -> Text | None:
    """None for a data set that is no text."""
    return text_for(dataset.vocabulary, dataset.task)


def text_for(vocabulary: int | None, task: Task) -> Text | None:
    """As `text_of`, from what is public alone."""
    return None if vocabulary is None else Text(vocabulary, isinstance(task, NextToken))


class Bag(nn.Module):
    """Sum of the words' embeddings / sqrt(number of words): [b, e]; for each token, of it and those before it."""

    def __init__(self, text: Text, width: int) -> None:
        super().__init__()
        self.words, self.each = nn.Embedding(text.vocabulary, width), text.each
        nn.init.zeros_(self.words.weight)

    def forward(self, ids: Tensor) -> Tensor:
        known = (ids != 0).float().unsqueeze(-1)
        found = self.words(ids) * known
        if self.each:
            return found.cumsum(1) / known.cumsum(1).clamp(min=1.0).sqrt()
        return found.sum(1) / known.sum(1).clamp(min=1.0).sqrt()


class Gru(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, as `nn.GRU` has it), whose steps are Linear layers of this file's rule:
    states [b, t, h], or the last word's, [b, h]. tokens: t.
    """

    def __init__(self, text: Text, tokens: int, width: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(text.vocabulary, width)
        self.inputs, self.state = nn.Linear(width, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.tokens, self.hidden, self.each = tokens, hidden, text.each

    def forward(self, ids: Tensor) -> Tensor:
        known, given, h = (ids != 0).float().unsqueeze(-1), self.inputs(self.words(ids)), self.hidden
        state, states = torch.zeros_like(given[:, 0, :h]), []
        for place in range(self.tokens):
            now, before = given[:, place], self.state(state)
            gates = torch.sigmoid(now[:, : 2 * h] + before[:, : 2 * h])
            new = torch.tanh(now[:, 2 * h :] + gates[:, :h] * before[:, 2 * h :])
            update = (1 - gates[:, h:]) * known[:, place]  # padding changes nothing
            state = state + update * (new - state)
            if self.each:
                states.append(state)
        return torch.stack(states, 1) if self.each else state


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a LayerNorm and beside a way past it (pre-norm, Xiong et al.
    2020).
    """

    def __init__(self, width: int, heads: int, each: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.width, self.heads, self.each = width, heads, each

    def forward(self, values: Tensor, unseen: Tensor) -> Tensor:
        rows, tokens, width = values.shape[0], values.shape[1], self.width
        asked = self.asked(self.first(values))
        query, key, value = (
            asked[:, :, part * width : (part + 1) * width]
            .reshape(rows, tokens, self.heads, width // self.heads)
            .transpose(1, 2)
            for part in range(3)
        )
        if self.each:
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=unseen)
        values = values + self.joined(seen.transpose(1, 2).reshape(rows, tokens, width))
        return values + self.narrow(functional.gelu(self.wide(self.second(values))))


class Transformer(nn.Module):
    """Embeddings of words and places, blocks, LayerNorm: [b, t, e], or its mean over the words, [b, e]."""

    def __init__(self, text: Text, tokens: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(text.vocabulary, width), nn.Embedding(tokens + 1, width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=1 / math.sqrt(width))
        self.blocks = nn.ModuleList(Block(width, heads, text.each) for _ in range(layers))
        self.last, self.each = nn.LayerNorm(width), text.each

    def forward(self, ids: Tensor) -> Tensor:
        here = ids != 0
        known = here.float().unsqueeze(-1)
        unseen = UNSEEN * (1 - known).unsqueeze(1).transpose(2, 3)
        values = (self.words(ids) + self.places(here.cumsum(1))) * known
        for block in self.blocks:
            values = block(values, unseen)
        values = self.last(values)
        if self.each:
            return values
        return (values * known).sum(1) / known.sum(1).clamp(min=1.0)


def bag(config: ModelConfig, text: Text, tokens: int, outputs: int) -> list[tuple[str, nn.Module]]:
    """Of width 0 the embedding is that of the outputs: softmax regression on counts of words."""
    if not config.embedding:
        return [("words", Bag(text, outputs))]
    body = Bag(text, config.embedding)
    nn.init.normal_(body.words.weight, std=1 / math.sqrt(config.embedding))
    return [("words", body), ("head", nn.Linear(config.embedding, outputs))]


def gru(config: ModelConfig, text: Text, tokens: int, outputs: int) -> list[tuple[str, nn.Module]]:
    body = Gru(text, tokens, _width(config), config.hidden)
    return [("words", body), ("head", nn.Linear(config.hidden, outputs))]


def transformer(config: ModelConfig, text: Text, tokens: int, outputs: int) -> list[tuple[str, nn.Module]]:
    width = _width(config)
    if width % config.heads:
        raise OptionError("model.heads", config.heads, f"must divide model.embedding, {width}")
    body = Transformer(text, tokens, width, config.layers, config.heads)
    return [("words", body), ("head", nn.Linear(width, outputs))]


def _width(config: ModelConfig) -> int:
    if not config.embedding:
        raise OptionError("model.embedding", 0, f"{config.name} needs a width of at least 1; 0 is for bag")
    return config.embedding


BUILDERS = {"bag": bag, "gru": gru, "transformer": transformer}
