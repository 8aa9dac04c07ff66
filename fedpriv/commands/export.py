"""`fedpriv export run=RUN_FOLDER out=FILE`: a finished run's model for other programs.

    run   the run's folder
    out   model.pt2 (torch.export; read by torch.export.load) or model.onnx (needs fedpriv[public]); must not exist

The file holds the computation and all parameters. Of pictures it reads float32 [n, channels, height, width] with levels
0 to 255 and normalises them; behind public features it reads these, [n, numbers, 1, 1]. Of a table it reads rows as the
schema encodes them, float32 [n, inputs], whose names are printed. It gives logits [n, classes] (of a regression the
scaled number). Before the file is kept, it is run and held against the model. Post-processing: no epsilon changes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fedpriv.common.command_line import command
from fedpriv.common.errors import OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import say
from fedpriv.training.sequential import scale_and_shift
from fedpriv.training.trained_model import TableModel, TrainedModel, load_model

#: How far an exported model's outputs may be from the model's own.
TOLERANCE = 1e-4
#: Inputs of a table that are named.
MOST_NAMES = 64
EXTRA = "fedpriv[public]"


class OfPixels(nn.Module):
    """A network behind the normalisation of its pictures: a * pixel - b."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.network = model.module
        for name, values in zip(("scale", "shift"), scale_and_shift(model.mean, model.std), strict=True):
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.network(pixels * self.scale - self.shift)
        return found


@command
def main(*, run: Path, out: Path) -> None:
    use_own_methods()
    if out.suffix not in (".pt2", ".onnx"):
        raise OptionError("out", out, "must end in .pt2 (torch.export) or .onnx")
    if out.exists():
        raise OptionError("out", out, "exists; allowed: a file that does not")
    module, example, reads = form_of(load_model(run))
    with torch.no_grad():
        expected = module(example)
    try:
        found = (in_onnx if out.suffix == ".onnx" else in_torch)(module, example, out)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        out.unlink()
        raise OptionError("run", run, f"its exported model differs by {float((found - expected).abs().max()):.2g}")
    say(f"{out}: reads {reads}; gives {list(expected.shape[1:])} numbers for each")


def form_of(model: TrainedModel | TableModel) -> tuple[nn.Module, Tensor, str]:
    """(what is exported, an example of two rows that it reads, these in words)."""
    random = torch.Generator().manual_seed(0)
    if isinstance(model, TableModel):
        names = model.schema.input_names
        shown = ", ".join(names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], "..."])
        if (tokens := model.schema.tokens) is not None:
            example = torch.randint(1, tokens.rule.vocabulary, (2, model.schema.num_inputs), generator=random)
            return model.module.eval(), example, f"token ids int64 [n, {example.shape[1]}]"
        example = torch.rand(2, model.schema.num_inputs, generator=random) * 2 - 1
        return model.module.eval(), example, f"float32 [n, {example.shape[1]}]: {shown}"
    if model.features is not None:
        dims = model.features(torch.zeros(1, *model.shape, dtype=torch.uint8).numpy()).shape[1]
        return model.module.eval(), torch.rand(2, dims, 1, 1, generator=random), f"features float32 [n, {dims}, 1, 1]"
    example = (torch.rand(2, *model.shape, generator=random) * 255).round()
    return OfPixels(model).eval(), example, f"pixels float32 [n, {', '.join(map(str, model.shape))}], 0 to 255"


def in_torch(module: nn.Module, example: Tensor, out: Path) -> Tensor:
    """What the file, read again, gives for the example."""
    rows = torch.export.Dim("n", min=1)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: rows},)), out)
    found: Tensor = torch.export.load(out).module()(example)
    return found


def in_onnx(module: nn.Module, example: Tensor, out: Path) -> Tensor:
    """As `in_torch`."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError as error:
        raise OptionError("out", out, f"needs {error.name}: pip install '{EXTRA}'; or a file .pt2") from None
    rows = torch.export.Dim("n", min=1)
    torch.onnx.export(
        module,
        (example,),
        out,
        input_names=["examples"],
        output_names=["outputs"],
        dynamo=True,
        dynamic_shapes=({0: rows},),
        external_data=False,
    )
    found = onnxruntime.InferenceSession(str(out)).run(None, {"examples": example.numpy()})[0]
    return torch.from_numpy(found)
