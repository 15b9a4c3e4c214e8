"""Loaders read the public formats, and say what is wrong with a file that they can't use.

The files here are tiny ones in the real formats, with their own digests put in place of the
standard ones. Tests marked `data` read the real sets from the folder that MPC_VOTE_DATA names.
"""

from __future__ import annotations

import bz2
import hashlib
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from mpc_vote.compat import import_torchvision
from mpc_vote.data import Dataset, sources

Loader = Callable[[Path], object]


def _resnet50(root: Path) -> dict[str, Dataset]:
    return sources.office_caltech(root, "resnet50")


def _surf(root: Path) -> dict[str, Dataset]:
    return sources.office_caltech(root, "surf")


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _put_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _trust(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(sources.DIGESTS, path.name, (f"sha256:{digest}",))


def _idx(array: np.ndarray) -> bytes:
    header = struct.pack(">I", 0x800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def digits() -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(20) % 10
    return np.random.default_rng(0).integers(0, 256, (20, 28, 28)), labels


def _put_mnist(root: Path, images: np.ndarray, labels: np.ndarray) -> list[Path]:
    paths = []
    for prefix in ("train", "t10k"):
        for part, array in (("images-idx3", images), ("labels-idx1", labels)):
            paths.append(root / f"MNIST/raw/{prefix}-{part}-ubyte")
            _put(paths[-1], _idx(array))
    return paths


def test_mnist_is_read_from_idx_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digits
    for path in _put_mnist(tmp_path, images, labels):
        _trust(monkeypatch, path)
    train, test = sources.mnist(tmp_path)
    assert (train.name, test.name) == ("mnist-train", "mnist-test")
    assert train.shape == (28, 28)
    assert np.allclose(train.x, images / 255)
    assert (train.y == labels).all()


def test_an_old_pickled_copy_of_mnist_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    for path in _put_mnist(tmp_path, *digits):
        _trust(monkeypatch, path)
    for name in ("training.pt", "test.pt"):
        _put(tmp_path / "MNIST/processed" / name, b"no tensor")
    assert len(sources.mnist(tmp_path)[0]) == 20


def test_mnist_files_with_too_few_classes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    for path in _put_mnist(tmp_path, digits[0], np.arange(20) % 8):
        _trust(monkeypatch, path)
    with pytest.raises(ValueError, match=r"mnist-train has no points of class 8, 9 of 10"):
        sources.mnist(tmp_path)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b[:-1] + b"\0", lambda b: b""])
def test_a_cut_or_altered_standard_file_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    digits: tuple[np.ndarray, np.ndarray],
    change: Callable[[bytes], bytes],
) -> None:
    images, labels = digits
    images[-1, -1, -1] = 7
    paths = _put_mnist(tmp_path, images, labels)
    for path in paths:
        _trust(monkeypatch, path)
    paths[2].write_bytes(change(paths[2].read_bytes()))
    with pytest.raises(ValueError, match=r"t10k-images.* checksum .* bytes, and may be cut short"):
        sources.mnist(tmp_path)


def test_only_the_standard_digests_are_trusted(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    _put_mnist(tmp_path, *digits)
    with pytest.raises(ValueError, match="checksum"):
        sources.mnist(tmp_path)


def test_usps_digests_are_those_of_torchvision() -> None:
    for _, name, md5 in import_torchvision().datasets.USPS.split_list.values():
        assert f"md5:{md5}" in sources.DIGESTS[name]


def _libsvm(images: np.ndarray, labels: np.ndarray) -> bytes:
    lines = [
        f"{label + 1} " + " ".join(f"{i}:{value:g}" for i, value in enumerate(image.flat, 1))
        for image, label in zip(images, labels, strict=True)
    ]
    return bz2.compress(("\n".join(lines) + "\n").encode())


def test_usps_is_read_from_packed_libsvm_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).uniform(-1, 1, (30, 16, 16))
    images[0, 0, :2] = -1, 1
    for name, rows in (("usps.bz2", slice(0, 20)), ("usps.t.bz2", slice(20, 30))):
        path = tmp_path / "USPS" / name
        _put(path, _libsvm(images[rows], np.arange(30)[rows] % 10))
        _trust(monkeypatch, path)
    train, test = sources.usps(tmp_path)
    assert (train.name, test.name) == ("usps-train", "usps-test")
    assert train.x.shape == (20, 16, 16)
    assert np.allclose(train.x, (images[:20] + 1) / 2, atol=1 / 255)
    assert (train.x.min(), train.x.max()) == (0.0, 1.0)
    assert (test.y == np.arange(10)).all()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"usps\.t\.bz2: its checksum"):
        sources.usps(tmp_path)


def _put_svhn(root: Path, monkeypatch: pytest.MonkeyPatch, split: str, pixels: np.ndarray) -> Path:
    """Pixels (n, 32, 32, 3); the digit 0 is labelled 10, as in the real files."""
    labels = (np.arange(len(pixels)) % 10)[:, None].astype(np.uint8)
    labels[labels == 0] = 10
    path = root / f"SVHN/{split}_32x32.mat"
    path.parent.mkdir(exist_ok=True)
    scipy.io.savemat(path, {"X": pixels.transpose(1, 2, 3, 0), "y": labels})
    known = import_torchvision().datasets.SVHN.split_list
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(known, split, [known[split][0], path.name, md5])
    return path


def test_standard_svhn_is_read_as_grey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((20, 32, 32, 3), np.uint8)
    pixels[3, 5, 6] = (255, 0, 0)
    pixels[4] = 255
    _put_svhn(tmp_path, monkeypatch, "train", pixels)
    _put_npz(tmp_path / "SVHN/svhn_test_gray32.npz", _stand_in())
    made = sources.svhn(tmp_path)
    assert made.name == "svhn-train"
    assert made.x.shape == (20, 32, 32)
    assert made.x[3, 5, 6] == pytest.approx(0.299)
    assert made.x[4] == pytest.approx(1.0)
    assert (made.y == np.arange(20) % 10).all()
    _put_svhn(tmp_path, monkeypatch, "extra", pixels[:10])
    both = sources.svhn(tmp_path)
    assert (both.name, len(both)) == ("svhn-train+extra", 30)


def test_damaged_svhn_does_not_fall_back_to_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _put_svhn(tmp_path, monkeypatch, "train", np.zeros((10, 32, 32, 3), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    _put_npz(tmp_path / "SVHN/svhn_test_gray32.npz", _stand_in())
    with pytest.raises(ValueError, match=r"train_32x32\.mat: its checksum"):
        sources.svhn(tmp_path)


def _stand_in() -> dict[str, np.ndarray]:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32)).astype(np.uint8)
    return {"x": pixels, "y": (np.arange(20) % 10).astype(np.uint8)}


def test_the_svhn_stand_in_says_what_it_is(tmp_path: Path) -> None:
    _put_npz(tmp_path / "SVHN/svhn_test_gray32.npz", _stand_in())
    made = sources.svhn(tmp_path)
    assert made.name == "svhn-stand-in"
    assert np.allclose(made.x, _stand_in()["x"] / 255)


def _office(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(sources.OFFICE_CLASSES)}
    for number, domain in enumerate(sources.OFFICE_DOMAINS, start=1):
        arrays[f"{domain}_x"] = rng.random((10 * number, width)).astype(np.float16)
        arrays[f"{domain}_y"] = (np.arange(10 * number) % 10).astype(np.uint8)
    return arrays


@pytest.mark.parametrize("backbone", ["resnet50", "efflite0", "mbv2"])
def test_office_caltech_features_come_by_domain(tmp_path: Path, backbone: str) -> None:
    arrays = _office(sources.OFFICE_WIDTHS[backbone])
    _put_npz(tmp_path / f"office_caltech10/{backbone}.npz", arrays)
    made = sources.office_caltech(tmp_path, backbone)
    assert tuple(made) == sources.OFFICE_DOMAINS
    webcam = made["webcam"]
    assert webcam.name == f"office-caltech/webcam/{backbone}"
    assert np.array_equal(webcam.x, arrays["webcam_x"].astype(np.float32))
    assert (webcam.y == np.arange(40) % 10).all()


def test_an_unknown_backbone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'vgg' are unknown; use resnet50"):
        sources.office_caltech(tmp_path, "vgg")


def _put_surf(root: Path, **change: np.ndarray) -> None:
    for domain in sources.OFFICE_DOMAINS:
        counts = np.random.default_rng(0).integers(0, 9, (20, 800)).astype(np.uint8)
        labels = (np.arange(20) % 10 + 1)[:, None].astype(np.uint8)
        path = root / f"office_caltech10/surf/{domain}.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        scipy.io.savemat(path, {"fts": counts, "labels": labels} | change)


def test_surf_histograms_sum_to_one(tmp_path: Path) -> None:
    _put_surf(tmp_path)
    made = sources.office_caltech(tmp_path, "surf")
    assert tuple(made) == sources.OFFICE_DOMAINS
    assert made["dslr"].name == "office-caltech/dslr/surf"
    assert made["dslr"].x.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert (made["dslr"].y == np.arange(20) % 10).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fts": np.zeros((20, 800), np.uint8)}, "empty histogram"),
        ({"fts": np.ones((20, 700), np.uint8)}, r"shape \(n, 800\)"),
        ({"fts": np.full((20, 800), np.nan)}, "NaN"),
        ({"fts": np.array(["text"])}, "numbers"),
        ({"labels": np.arange(20) % 10}, "label -1"),
        ({"labels": np.arange(20) % 5 + 1}, "no points of class 5, 6, 7, 8, 9"),
    ],
)
def test_malformed_surf_files_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    _put_surf(tmp_path, **change)
    with pytest.raises(ValueError, match=rf"amazon\.mat: .*{message}"):
        _surf(tmp_path)


def test_a_surf_file_without_its_arrays_or_cut_short_is_refused(tmp_path: Path) -> None:
    _put_surf(tmp_path)
    path = tmp_path / "office_caltech10/surf/webcam.mat"
    content = path.read_bytes()
    for length in (0, 50, 130, 200, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"webcam\.mat: (not a readable MATLAB|misses)"):
            _surf(tmp_path)
    scipy.io.savemat(path, {"fts": np.ones((2, 800))})
    with pytest.raises(ValueError, match=r"webcam\.mat: misses labels"):
        _surf(tmp_path)


@pytest.mark.parametrize("kind", ["surf", "svhn"])
def test_without_scipy_the_user_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _put_surf(tmp_path)
    pixels = np.zeros((10, 32, 32, 3), np.uint8)
    _put_svhn(tmp_path, monkeypatch, "train", pixels)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    loader: Loader = _surf if kind == "surf" else sources.svhn
    with pytest.raises(ValueError, match=r"\.mat: .*pip install scipy"):
        loader(tmp_path)


def _put_images(root: Path) -> None:
    for domain in sources.OFFICE_DOMAINS:
        for label in sources.OFFICE_CLASSES:
            folder = root / "office_caltech10" / domain / label
            folder.mkdir(parents=True)
            for number in (2, 1):
                Image.new("RGB", (4, 4)).save(folder / f"frame_{number}.jpg")


def test_office_caltech_images_are_listed_in_order(tmp_path: Path) -> None:
    _put_images(tmp_path)
    made = sources.office_caltech_images(tmp_path)
    assert tuple(made) == sources.OFFICE_DOMAINS
    dslr = made["dslr"]
    assert (dslr.name, dslr.classes) == ("office-caltech/dslr/images", 10)
    assert dslr.y.tolist() == [label for label in range(10) for _ in range(2)]
    assert dslr.paths[:2] == tuple(
        tmp_path / f"office_caltech10/dslr/backpack/frame_{number}.jpg" for number in (1, 2)
    )


def test_images_with_missing_odd_or_empty_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"office_caltech10/amazon: .*<domain>/<class>"):
        sources.office_caltech_images(tmp_path)
    _put_images(tmp_path)
    mugs = tmp_path / "office_caltech10/webcam/mug"
    for path in mugs.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"webcam: .*mug"):
        sources.office_caltech_images(tmp_path)
    mugs.rename(mugs.with_name("cup"))
    with pytest.raises(ValueError, match=r"webcam: missing or unknown class folders: cup, mug"):
        sources.office_caltech_images(tmp_path)


def _celeba() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.random((6, 1280)).astype(np.float16),
        "y": rng.integers(0, 2, (6, 40)).astype(np.uint8),
        "attributes": np.array(sources.CELEBA_ATTRIBUTES),
    }


def test_celeba_has_a_column_per_attribute(tmp_path: Path) -> None:
    _put_npz(tmp_path / "celeba10k/efflite0.npz", _celeba())
    made = sources.celeba(tmp_path)
    assert made.multi_label
    assert made.classes == len(sources.CELEBA_ATTRIBUTES) == 40
    assert made.x.dtype == np.float32
    assert np.array_equal(made.y, _celeba()["y"])


STAND_IN = (sources.svhn, "SVHN/svhn_test_gray32.npz", _stand_in())
OFFICE = (_resnet50, "office_caltech10/resnet50.npz", _office(2048))
CELEBA = (sources.celeba, "celeba10k/efflite0.npz", _celeba())
_SHORT_Y = (np.arange(20) % 9).astype(np.uint8)


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        (STAND_IN, {"y": None}, "misses y; expected x, y"),
        (STAND_IN, {"x": np.zeros((20, 28, 28), np.uint8)}, r"uint8 of shape \(n, 32, 32\)"),
        (STAND_IN, {"x": np.zeros((20, 32, 32))}, r"uint8 of shape .* got float64"),
        (STAND_IN, {"x": np.zeros((19, 32, 32), np.uint8)}, "19 points but 20 labels"),
        (STAND_IN, {"y": _SHORT_Y}, "no points of class 9 of 10"),
        (STAND_IN, {"y": np.arange(20)}, "label 10 of point 10"),
        (STAND_IN, {"y": np.zeros(20)}, "integers"),
        (STAND_IN, {"y": np.zeros((20, 10), np.uint8)}, r"shape \(n,\)"),
        (STAND_IN, {"y": np.array([{}] * 20)}, "not a readable .npz without pickle"),
        (OFFICE, {"dslr_x": None, "dslr_y": None}, "misses dslr_x, dslr_y"),
        (OFFICE, {"dslr_x": np.zeros((30, 1280), np.float16)}, r"dslr_x must .*\(n, 2048\)"),
        (OFFICE, {"dslr_x": np.zeros((30, 2048), np.int64)}, "dslr_x must be floats"),
        (OFFICE, {"dslr_x": np.full((30, 2048), np.nan, np.float16)}, "point 0 holds NaN"),
        (OFFICE, {"dslr_x": np.full((30, 2048), np.inf, np.float16)}, "point 0 holds NaN"),
        (OFFICE, {"dslr_x": np.full((30, 2048), -1, np.float16)}, "dslr_x holds negative"),
        (OFFICE, {"dslr_y": np.zeros(30, np.uint8)}, "office-caltech/dslr/.* no points of class 1"),
        (OFFICE, {"classes": np.array(sources.OFFICE_CLASSES[::-1])}, "in this order, backpack"),
        (OFFICE, {"classes": np.arange(10)}, "in this order"),
        (CELEBA, {"attributes": None}, "misses attributes"),
        (CELEBA, {"attributes": np.array(["Young"])}, "in this order, 5_o_Clock_Shadow"),
        (CELEBA, {"y": np.zeros((6, 39), np.uint8)}, r"shape \(n, 40\)"),
        (CELEBA, {"y": np.zeros(6, np.uint8)}, r"shape \(n, 40\)"),
        (CELEBA, {"y": np.full((6, 40), 2, np.uint8)}, "0 or 1"),
        (CELEBA, {"x": np.zeros((0, 1280)), "y": np.zeros((0, 40), int)}, "no points"),
    ],
)
def test_malformed_feature_files_are_refused_with_their_reason(
    tmp_path: Path,
    source: tuple[Loader, str, dict[str, np.ndarray]],
    change: dict[str, np.ndarray | None],
    message: str,
) -> None:
    loader, name, arrays = source
    changed = {key: value for key, value in (arrays | change).items() if value is not None}
    _put_npz(tmp_path / name, changed)
    with pytest.raises(ValueError, match=rf"{Path(name).name}: .*{message}"):
        loader(tmp_path)


@pytest.mark.parametrize("source", [STAND_IN, OFFICE, CELEBA])
def test_cut_feature_files_are_refused(
    tmp_path: Path, source: tuple[Loader, str, dict[str, np.ndarray]]
) -> None:
    loader, name, arrays = source
    path = tmp_path / name
    _put_npz(path, arrays)
    content = path.read_bytes()
    for length in (0, 3, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"not a readable \.npz"):
            loader(tmp_path)


def test_damage_inside_a_feature_file_is_noticed(tmp_path: Path) -> None:
    _put_npz(tmp_path / "celeba10k/efflite0.npz", _celeba())
    path = tmp_path / "celeba10k/efflite0.npz"
    content = bytearray(path.read_bytes())
    content[5000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a readable \.npz"):
        sources.celeba(tmp_path)


@pytest.mark.parametrize(
    ("loader", "path", "advice"),
    [
        (sources.mnist, "MNIST/raw/train-images-idx3-ubyte", "torchvision.datasets.MNIST"),
        (sources.usps, "USPS/usps.bz2", "torchvision.datasets.USPS"),
        (sources.svhn, "SVHN/svhn_test_gray32.npz", "torchvision.datasets.SVHN"),
        (_resnet50, "office_caltech10/resnet50.npz", "<domain>_x"),
        (_surf, "office_caltech10/surf/amazon.mat", "surf/<domain>.mat"),
        (sources.celeba, "celeba10k/efflite0.npz", "torchvision.datasets.CelebA"),
    ],
)
def test_a_missing_file_is_named_with_where_it_belongs(
    tmp_path: Path, loader: Loader, path: str, advice: str
) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        loader(tmp_path)
    assert str(tmp_path / path) in str(missing.value)
    assert advice in str(missing.value)
    with pytest.raises(FileNotFoundError, match="no such data folder"):
        loader(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def real() -> Path:
    if "MPC_VOTE_DATA" not in os.environ:
        pytest.skip("set MPC_VOTE_DATA to a folder with the real data sets")
    return Path(os.environ["MPC_VOTE_DATA"])


def _shapes(*made: Dataset) -> list[tuple[int, ...]]:
    for dataset in made:
        assert dataset.x.min() >= 0
    return [dataset.x.shape for dataset in made]


@pytest.mark.data
def test_real_mnist(real: Path) -> None:
    train, test = sources.mnist(real)
    assert _shapes(train, test) == [(60_000, 28, 28), (10_000, 28, 28)]
    assert np.bincount(train.y).tolist()[:2] == [5923, 6742]
    assert train.x.max() == 1.0


@pytest.mark.data
def test_real_usps(real: Path) -> None:
    train, test = sources.usps(real)
    assert _shapes(train, test) == [(7291, 16, 16), (2007, 16, 16)]
    assert np.bincount(test.y).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert train.x.max() == 1.0


@pytest.mark.data
def test_real_svhn(real: Path) -> None:
    made = sources.svhn(real)
    assert made.shape == (32, 32)
    sizes = {"svhn-stand-in": 23_060, "svhn-train": 73_257, "svhn-train+extra": 604_388}
    assert len(made) == sizes[made.name]


@pytest.mark.data
def test_real_office_caltech(real: Path) -> None:
    images = sources.office_caltech_images(real)
    for backbone, width in sources.OFFICE_WIDTHS.items():
        made = sources.office_caltech(real, backbone)
        assert _shapes(*made.values()) == [(958, width), (1123, width), (157, width), (295, width)]
        for domain, dataset in made.items():
            assert np.array_equal(dataset.y, images[domain].y)


@pytest.mark.data
def test_real_celeba(real: Path) -> None:
    made = sources.celeba(real)
    assert _shapes(made) == [(10_000, 1280)]
    assert made.y.shape == (10_000, 40)
