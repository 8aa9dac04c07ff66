"""Models of transformers and peft: one set of what is trained, and the gradients of single examples of it."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ledger_of, summary_of
from safetensors.torch import load_file
from text_data import TOKENS, VOCABULARY, text_dataset
from torch import Tensor, nn

import fedpriv.client.build
import fedpriv.data.load
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import PADDING, NextToken, of_classes
from fedpriv.runs.start import start_run
from fedpriv.training.flat_model import layout_of
from fedpriv.training.language_models import Text
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.vectorisable import obstacle
from fedpriv.training.vectorised import VectorisedTrainer

transformers = pytest.importorskip("transformers")
CLASSES = 3
QUIET = {"bos_token_id": None, "eos_token_id": None}


def bert(shape: tuple[int, ...], classes: int, vocabulary: int, **options: Any) -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=vocabulary, num_labels=classes, max_position_embeddings=16, **sizes)
    config.update({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | options)
    return transformers.BertForSequenceClassification(config)


def gpt2(shape: tuple[int, ...], classes: int, vocabulary: int, **options: Any) -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "num_labels": classes, "pad_token_id": 0}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=vocabulary, **{**sizes, **QUIET, **off, **options})
    return transformers.GPT2ForSequenceClassification(config)


def gpt2_words(shape: tuple[int, ...], classes: int, vocabulary: int) -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocabulary, **sizes, **QUIET, **off))


def dropping(shape: tuple[int, ...], classes: int, vocabulary: int) -> nn.Module:
    return bert(shape, classes, vocabulary, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)


def with_peft(model: nn.Module, *names: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=[*names], task_type="SEQ_CLS", fan_in_fan_out="c_attn" in names)
    )


def bert_peft(*given: Any) -> nn.Module:
    return with_peft(bert(*given), "query", "value")


def gpt2_peft(*given: Any) -> nn.Module:
    return with_peft(gpt2(*given), "c_attn")


def lost_peft(*given: Any) -> nn.Module:
    return with_peft(gpt2(*given), "query")


def other_padding(*given: Any) -> nn.Module:
    return gpt2(*given, pad_token_id=7)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_transformers")
    for function in (bert, gpt2, gpt2_words, dropping, bert_peft, gpt2_peft, lost_peft, other_padding):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def built(name: str, train: str = "all", each: bool = False, **options: Any) -> nn.Module:
    config = ModelConfig(name="custom", path=f"own_transformers.{name}", train=train, **options)  # type: ignore[arg-type]
    return build_model(config, (TOKENS,), VOCABULARY if each else CLASSES, 1, Text(VOCABULARY, each))


def texts(each: bool = False) -> tuple[Tensor, Tensor]:
    """Of several lengths; the last but one is full."""
    ids = torch.from_numpy(text_dataset().train.inputs[:5].astype("int64"))
    ids[3] = 5
    following = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1)
    return ids, following.masked_fill(following == 0, PADDING) if each else torch.arange(5) % CLASSES


def clipped_one_by_one(model: nn.Module, each: bool) -> tuple[Tensor, Tensor, float, Any]:
    """(sum of clipped gradients that are computed alone, their norms, the bound, the task)."""
    (ids, targets), singles = texts(each), []
    task = NextToken(tuple(map(str, range(VOCABULARY))), TOKENS) if each else of_classes(("a", "b", "c"))
    for one, of in zip(ids, targets, strict=True):
        loss = task.losses(model.train()(one[None]), of[None]).sum()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        singles.append(torch.cat([part.flatten() for part in parts]).double())
    norms = torch.stack(singles).norm(dim=1)
    bound = float(norms.median())
    factors = torch.clamp(bound * (1 - KEPT_BACK) / norms, max=1.0)
    return (torch.stack(singles) * factors[:, None]).sum(0), norms, bound, task


def moved(model: nn.Module) -> nn.Module:
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.1)
    return model


#: (model, part) -> numbers that are trained: h = 16, rank 4 or peft's 2; BERT has 2 x 6 linear layers and a pooler.
TRAINED = {
    ("bert", "head"): 16 * 3 + 3,
    ("bert", "lora"): 2 * (4 * 4 * 32 + 2 * 4 * 48) + 4 * 32 + 51,
    ("bert", "ffa_lora"): 2 * (4 * 4 * 16 + 4 * 32 + 4 * 16) + 4 * 16 + 51,
    ("bert", "bias"): 2 * (4 * 16 + 32 + 16 + 2 * 16) + 16 + 16 + 51,
    ("dropping", "lora"): 2 * (4 * 4 * 32 + 2 * 4 * 48) + 4 * 32 + 51,
    ("gpt2", "lora"): 2 * 4 * (64 + 32 + 80 + 80) + 48,
    ("gpt2", "ffa_lora"): 2 * 4 * (48 + 16 + 64 + 16) + 48,
    ("gpt2", "film"): 2 * (5 * 16) + 48,
    ("gpt2_words", "lora"): 4 * (64 + 32 + 80 + 80) + 16 * VOCABULARY,
    ("bert_peft", "all"): 2 * 2 * 2 * 32 + 51,
    ("gpt2_peft", "all"): 2 * 2 * 64 + 48,
}


@pytest.mark.parametrize(("name", "train"), TRAINED)
@pytest.mark.rotates(5)
def test_what_is_trained_has_the_gradients_that_examples_have_alone(name: str, train: str) -> None:
    each = name == "gpt2_words"
    model = moved(built(name, train, each))
    assert layout_of(model).num_parameters == TRAINED[name, train]
    expected, norms, bound, task = clipped_one_by_one(model, each)
    way = PerExampleGradients(model, task=task, vocabulary=VOCABULARY)
    found = way.clipped_sum(*texts(each), bound)
    assert way.mode == "vmap" or name.endswith("peft")
    torch.testing.assert_close(found.norms, norms, rtol=1e-4, atol=1e-7)
    assert float((found.total - expected).norm()) < 1e-5 * float(expected.norm())


@pytest.mark.parametrize("train", ["head", "lora", "ffa_lora", "film", "bias"])
@pytest.mark.parametrize("name", ["dropping", "gpt2"])
def test_every_part_begins_as_the_whole_model_without_its_dropout(name: str, train: str) -> None:
    whole, part = built(name).eval(), built(name, train).eval()
    ids, _ = texts()
    torch.testing.assert_close(part(ids), whole(ids))
    assert any(parameter.grad_fn is None and parameter.requires_grad for parameter in part.parameters())


def test_a_model_is_told_what_is_padding_and_gives_logits_alone() -> None:
    for name in ("bert", "gpt2"):
        model, ids = built(name).eval(), torch.tensor([[3, 4, 5, 0, 0]])
        expected = type(model).__mro__[1].forward(model, ids, attention_mask=torch.tensor([[1, 1, 1, 0, 0]])).logits
        assert torch.equal(model(ids), expected)
        torch.testing.assert_close(model(ids), model(ids[:, :3]))


def test_tied_embeddings_are_one_coordinate_that_cannot_be_divided() -> None:
    layout = layout_of(built("gpt2_words", each=True))
    assert layout.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert layout.names.count("transformer.wte.weight") == 1 and "lm_head.weight" not in layout.names
    words = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False), nn.Linear(5, 2))
    words[2].weight = words[0].weight
    layout = layout_of(words)
    assert [block.name for block in layout.blocks] == ["0", "1", "3"]
    assert layout.last_blocks(1, "personal") == slice(40, 52)
    words = nn.Sequential(
        nn.Embedding(5, 4), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 2))
    )
    words[2][0].weight = words[0].weight
    with pytest.raises(OptionError, match=r"personal=1: 0\.weight and 2\.0\.weight are one parameter.*make two of it"):
        layout_of(words).last_blocks(1, "personal")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("bert", {"lora_layers": ("query", "nothing")}, r"no linear layer or convolution nothing; allowed: query, key"),
        ("bert", {"lora_layers": ("query", "query")}, "names query twice; allowed: each name once"),
        ("lost_peft", {"train": "all"}, "raised NoMatchingPeftModuleError"),
        ("other_padding", {"train": "all"}, "its configuration pads with 7.*allowed: pad_token_id=0"),
        ("bert_peft", {}, "is one block, its head: nothing would be frozen; allowed: all"),
    ],
)
def test_what_no_model_has_is_refused_in_one_line(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        built(name, **{"train": "lora", **options})
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_wrong_name_of_a_layer_is_answered_by_names_that_work(name: str) -> None:
    with pytest.raises(OptionError) as refused:
        built(name, "lora", lora_layers=("nothing",))
    ends, _, whole = refused.value.allowed.partition("allowed: ")[2].partition(", or whole names: ")
    assert ends and whole and not whole.endswith("...")
    for layer in (*ends.split(", "), *re.sub(r", \.\.\. \(\d+ in all\)$", "", whole).split(", ")):
        built(name, "lora", lora_layers=(layer,))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_many_clients_train_at_once_as_one_after_the_other(name: str) -> None:
    model = FlatModel(built(name, "lora"), vocabulary=VOCABULARY)
    assert obstacle(model, (TOKENS,)) is None
    ids, labels = texts()
    local = LocalConfig(epochs=2, batch_size=3, lr=0.1, momentum=0.0, sampler="shuffle")
    start, found = model.theta.clone(), []
    for kind in (SequentialTrainer, VectorisedTrainer):
        asked = [Training(start, LocalData(ids[:n], labels[:n]), np.random.default_rng(n)) for n in (5, 4)]
        found.append(kind(model, local).train_all(asked))
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first.update, second.update, rtol=1e-4, atol=1e-6)


def test_layers_are_named_by_the_ends_of_their_names() -> None:
    found = built("bert", "lora", lora_layers=("query", "layer.1.attention.self.value"))
    names = [name for name, _ in found.named_parameters() if name.endswith("down.weight")]
    place = "bert.encoder.layer.{}.attention.self.{}.down.weight"
    assert names == [place.format(0, "query"), place.format(1, "query"), place.format(1, "value")]


# --- runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    def started(name: str, *options: str) -> Path:
        monkeypatch.setattr(fedpriv.data.load, "load_table", lambda *_: text_dataset(name == "gpt2_words"))
        monkeypatch.setattr(fedpriv.client.build, "_layouts", {})
        small = ("dataset=breast_cancer", "num_clients=2", "clients_per_round=2", "num_rounds=1", "engine=inprocess")
        given = (
            "model=custom",
            f"model.path=own_transformers.{name}",
            "local.batch_size=20",
            "operations.report=false",
        )
        start_run(compose([*small, *given, *options]), tmp_path / "run")
        return tmp_path / "run"

    return started


@pytest.mark.parametrize("strategy", ["dpsgd", "fedldp"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2_peft"])
@pytest.mark.rotates(2)
def test_a_run_sends_and_adds_noise_to_what_is_trained_alone(
    name: str, strategy: str, run: Callable[..., Path]
) -> None:
    train, classes = "all" if name.endswith("peft") else "lora", 2
    folder = run(name, f"strategy={strategy}", f"model.train={train}")
    summary, whole = summary_of(folder), TRAINED[name, train] - (CLASSES - classes) * (16 + (name == "bert"))
    assert (summary["num_parameters"], summary["num_shared"]) == (whole, whole)
    assert ledger_of(folder)
    saved, before = load_file(folder / "model.safetensors"), build_model(
        ModelConfig(name="custom", path=f"own_transformers.{name}", train=train),  # type: ignore[arg-type]
        (TOKENS,), classes, 0, Text(VOCABULARY, False),
    )  # fmt: skip
    trained = {key for key, _ in before.named_parameters()}
    changed = {key for key, value in saved.items() if not torch.equal(value, before.state_dict()[key])}
    assert changed == trained and len(saved) > len(trained)


def test_a_runs_tied_model_is_loaded_as_it_was_trained(run: Callable[..., Path]) -> None:
    folder = run("gpt2_words", "strategy=fedavg")
    saved = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in saved
    module = build_model(
        ModelConfig(name="custom", path="own_transformers.gpt2_words"), (TOKENS,), VOCABULARY, 0, Text(VOCABULARY, True)
    )
    assert not module.load_state_dict(saved, strict=False).unexpected_keys
    assert torch.equal(module.lm_head.weight, saved["transformer.wte.weight"])  # type: ignore[union-attr]
