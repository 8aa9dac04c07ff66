"""features=processes: a network that has seen random processes alone, and the script that trains it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import process_network
from fedpriv.data.features import MOST_DRAWN, PROCESS_DIMS, Features, known_beforehand
from fedpriv.data.process_network import DIMS, MAP, MOST, WEIGHTS, ProcessNetwork, drawings_map, weights_digest
from tools.make_process_network import CANVAS, SIDE, Pictures, main

#: Of the file that docs/features.md's figures were measured with: other weights want other figures.
DIGEST = "4e3f163c5eac546b0004dbfc496b2bd8fbaa808493d94e7081ba77bf6e5ad869"


def pictures(many: int, channels: int = 3, side: int = 32) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (many, channels, side, side), dtype=np.uint8)


def test_the_weights_are_those_of_the_figures_and_below_five_megabytes() -> None:
    content = (Path(process_network.__file__).parent / WEIGHTS).read_bytes()
    assert hashlib.sha256(content).hexdigest() == DIGEST != weights_digest()
    both = len(content) + (Path(process_network.__file__).parent / MAP).stat().st_size
    assert both < 5e6 and (DIMS, MOST) == (PROCESS_DIMS, MOST_DRAWN)


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (1, 8)])
def test_features_are_means_of_three_stages_over_quarters(channels: int, side: int, tmp_path: Path) -> None:
    compute = Features(FeaturesConfig(name="processes"), (channels, side, side), tmp_path)
    images = pictures(3, channels, side)
    found = compute.base(images)
    network = process_network.process_network()
    with torch.inference_mode():
        shown = torch.from_numpy(images).float().div(255).expand(-1, 3, -1, -1)
        stages = network.stages(shown)
    size = stages[-1].shape[-1]  # where it is odd, quarters overlap by a row or column
    expected = stages[-1][:, :, : (size + 1) // 2, size // 2 :].mean((2, 3))  # the quarter on the right of the top
    assert found.shape == (3, DIMS) and compute.dims == DIMS
    np.testing.assert_allclose(found[:, -4 * 192 :].reshape(3, 192, 4)[:, :, 1], expected, rtol=1e-3, atol=1e-4)


def test_the_same_bits_wherever_a_picture_stands_and_mirrored(tmp_path: Path) -> None:
    compute = Features(FeaturesConfig(name="processes", mirror=True), (3, 16, 16), tmp_path)
    images = pictures(70, side=16)
    whole = compute(images)
    assert np.array_equal(compute(images[65:66])[0], whole[65])
    assert np.array_equal(compute(images[:1, :, :, ::-1])[0], whole[0])


def test_the_map_whitens_drawings_in_part(tmp_path: Path) -> None:
    """Of other drawings than those it was made of: variances fall far less over the directions with an exponent."""
    drawn = Pictures(torch.device("cpu"), 5).batch(64)[:, :, 8:40, 8:40]
    images = (drawn * 255).round().byte().numpy()
    compute = Features(FeaturesConfig(name="processes", map="drawings", mirror=True, dims=20), (3, 32, 32), tmp_path)
    values = compute.base(images)
    spreads = []
    for exponent in (0.0, 0.5):
        chosen = drawings_map(20, exponent)
        found = (values - chosen.mean) @ chosen.matrix
        variances = found.var(0)
        spreads.append(variances[:5].mean() / variances[-5:].mean())
        np.testing.assert_allclose(chosen(values), found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-4)
    assert spreads[0] > 10 > 4 > spreads[1]
    assert compute(images).shape == (64, 20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["features=gradients", "features.map=drawings"], r"features\.map=drawings: is of features=processes"),
        (
            ["features=processes", "features.map=drawings", "features.dims=auto"],
            r"features\.dims=auto.*strokes and pink.*=drawings: a number",
        ),
    ],
)
def test_where_the_map_belongs(options: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        compose(options)


def test_too_many_directions(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"features\.dims=361: at most 360 of features=processes"):
        Features(FeaturesConfig(name="processes", map="drawings", dims=361), (3, 32, 32), tmp_path)


def test_a_bundle_without_weights_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_network, "WEIGHTS", "absent.safetensors")
    with pytest.raises(OptionError, match=r"absent\.safetensors is not beside the code, nor in an installed fedpriv"):
        weights_digest()


def test_reports_say_that_no_picture_of_anything_was_seen() -> None:
    assert "trained on pictures of random processes" in known_beforehand(compose(["features=processes"]))


# --- the script ----------------------------------------------------------------------------------------------


def test_drawn_pictures_are_colourful_differ_and_follow_from_the_seed() -> None:
    first, again, other = (Pictures(torch.device("cpu"), seed).batch(16) for seed in (1, 1, 2))
    assert first.shape == (16, 3, CANVAS, CANVAS) and float(first.min()) >= 0 and float(first.max()) <= 1
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.std((2, 3)).median()) > 0.05  # something is to be seen
    assert len({tuple(one.flatten()[:50].tolist()) for one in first}) == 16
    views = Pictures(torch.device("cpu"), 3).views(first)
    assert views.shape == (16, 3, SIDE, SIDE) and bool(torch.isfinite(views).all())


@pytest.mark.slow
def test_training_goes_on_where_it_stopped_and_moves_the_weights(tmp_path: Path) -> None:
    options = [f"out={tmp_path}", "device=cpu", "size=test", "seconds=1000"]
    assert main([*options, "steps=2"]) == 0
    first = load_file(tmp_path / WEIGHTS)
    assert main([*options, "steps=3"]) == 0
    second, log = load_file(tmp_path / WEIGHTS), (tmp_path / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in log]  # on a slow machine also the second
    assert steps in ([1, 3], [1, 2, 3])
    assert not torch.equal(first["stem.weight"], second["stem.weight"])
    missing = ProcessNetwork().load_state_dict({name: value.float() for name, value in second.items()}, strict=False)
    assert not missing.unexpected_keys and all(key.endswith("num_batches_tracked") for key in missing.missing_keys)
