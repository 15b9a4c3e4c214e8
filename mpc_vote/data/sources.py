"""Real data sets, read from a folder that the user has filled; nothing here downloads.

The layout is torchvision's where torchvision has the set. Each loader takes the data folder. What
goes wrong is a FileNotFoundError or a ValueError that names the file and says what to do: missing,
damaged, not the standard file, of another shape, classes without a point, NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.compat import import_torchvision
from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.data.files import check_digest, find_file, import_scipy_io, read_mat, read_npz

OFFICE_DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
OFFICE_CLASSES = (
    *("backpack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop", "monitor", "mouse", "mug", "projector"),
)
OFFICE_WIDTHS = {"resnet50": 2048, "efflite0": 1280, "mbv2": 1280, "surf": 800}
"""The feature maps that Office-Caltech comes in, and how many numbers each gives a picture."""

CELEBA_WIDTH = 1280
CELEBA_ATTRIBUTES = (
    *("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs"),
    *("Big_Lips", "Big_Nose", "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair"),
    *("Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses", "Goatee", "Gray_Hair"),
    *("Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache"),
    *("Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline"),
    *("Rosy_Cheeks", "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings"),
    *("Wearing_Hat", "Wearing_Lipstick", "Wearing_Necklace", "Wearing_Necktie", "Young"),
)

DIGESTS: dict[str, tuple[str, ...]] = {
    "train-images-idx3-ubyte": (
        "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    # As torchvision's USPS downloads it, and a copy packed anew with the published class counts.
    "usps.bz2": (
        "md5:ec16c51db3855ca6c91edd34d0e9b197",
        "sha256:17dda8723042004b3fe6512c8769022bf7cec5322be1fb98a623d5de13b70666",
    ),
    "usps.t.bz2": (
        "md5:8ea070ee2aca1ac39742fdd1ef5ed118",
        "sha256:22bb89593ed8a6c80fbd69e16bc34c935f462e7c8531a812fc3d2a141d17c298",
    ),
}
"""What the standard public files hash to. torchvision keeps MD5s of MNIST's archives only."""

_DIGITS = 10
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_SVHN_SIDE = 32
_SVHN_STAND_IN = "SVHN/svhn_test_gray32.npz"
_ROWS = 4096

_GET_MNIST = (
    "MNIST's four uncompressed idx files belong in MNIST/raw below the data folder, where "
    "torchvision.datasets.MNIST(folder, download=True) puts them."
)
_GET_USPS = (
    "usps.bz2 and usps.t.bz2 belong in USPS below the data folder, where "
    "torchvision.datasets.USPS(folder + '/USPS', download=True) puts them."
)
_GET_SVHN = (
    "train_32x32.mat (and extra_32x32.mat, if wanted) belong in SVHN below the data folder, where "
    "torchvision.datasets.SVHN(folder + '/SVHN', download=True) puts them; without them, "
    f"{_SVHN_STAND_IN} serves, with grey digits x (n, 32, 32) and labels y, both uint8."
)
_GET_OFFICE = (
    "Office-Caltech10 belongs in office_caltech10 below the data folder: pictures as "
    "<domain>/<class>/*.jpg, features as <backbone>.npz with <domain>_x, <domain>_y and classes, "
    "SURF histograms as surf/<domain>.mat with fts and labels; pictures and histograms are those "
    "of Gong et al., 'Geodesic flow kernel' (2012)."
)
_GET_CELEBA = (
    "CelebA's features belong in celeba10k/efflite0.npz below the data folder, with x (n, 1280), "
    "y (n, 40) and attributes; the pictures are what torchvision.datasets.CelebA downloads, and "
    "EfficientNet-Lite0 maps them."
)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Pictures that a backbone has yet to map, with their labels in 0..classes-1."""

    name: str
    paths: tuple[Path, ...]
    y: LabelArray
    classes: int


def mnist(root: Path) -> tuple[Dataset, Dataset]:
    """MNIST's train and test set: grey 28x28 in 0..1."""
    return _mnist(root, "train", "train"), _mnist(root, "t10k", "test")


def usps(root: Path) -> tuple[Dataset, Dataset]:
    """USPS's train and test set: grey 16x16 in 0..1."""
    return _usps(root, "usps.bz2", "train"), _usps(root, "usps.t.bz2", "test")


def svhn(root: Path) -> Dataset:
    """Street-view house numbers: grey 32x32 in 0..1.

    The standard train set, with the extra one where it is there ("svhn-train", "svhn-train+extra").
    Where neither is, a stand-in of the same look, cut from the test pictures: figures on that
    one, "svhn-stand-in", are not comparable with published ones.
    """
    folder = root / "SVHN"
    splits = [name for name in ("train", "extra") if (folder / f"{name}_32x32.mat").is_file()]
    if not splits:
        return _svhn_stand_in(find_file(root, _SVHN_STAND_IN, _GET_SVHN))
    loaded = [_svhn_split(folder, split) for split in splits]
    x, y = (np.concatenate(arrays) for arrays in zip(*loaded, strict=True))
    return _checked(folder, f"svhn-{'+'.join(splits)}", x, y, _DIGITS)


def office_caltech(root: Path, backbone: str) -> dict[str, Dataset]:
    """Office-Caltech10's four domains as features of a backbone, one of `OFFICE_WIDTHS`.

    "surf" are the weak features of the literature: histograms of 800 visual words, here scaled to
    sum to 1, each picture by itself.
    """
    if backbone not in OFFICE_WIDTHS:
        raise ValueError(f"features of {backbone!r} are unknown; use {', '.join(OFFICE_WIDTHS)}")
    if backbone == "surf":
        return {domain: _office_surf(root, domain) for domain in OFFICE_DOMAINS}
    path = find_file(root, f"office_caltech10/{backbone}.npz", _GET_OFFICE)
    pairs = {domain: (f"{domain}_x", f"{domain}_y") for domain in OFFICE_DOMAINS}
    arrays = read_npz(path, ["classes", *(key for pair in pairs.values() for key in pair)])
    _check_names(path, arrays["classes"], OFFICE_CLASSES)
    made = {}
    for domain, (x_key, y_key) in pairs.items():
        x = _features(path, x_key, arrays[x_key], OFFICE_WIDTHS[backbone])
        y = _labels(path, y_key, arrays[y_key])
        name = f"office-caltech/{domain}/{backbone}"
        made[domain] = _checked(path, name, x, y, len(OFFICE_CLASSES))
    return made


def office_caltech_images(root: Path) -> dict[str, ImageFiles]:
    """Office-Caltech10's pictures by domain, in the order of torchvision's ImageFolder."""
    datasets = import_torchvision().datasets
    made = {}
    for domain in OFFICE_DOMAINS:
        folder = root / "office_caltech10" / domain
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder. {_GET_OFFICE}")
        found = {path.name for path in folder.iterdir() if path.is_dir()}
        if found != set(OFFICE_CLASSES):
            odd = ", ".join(sorted(found ^ set(OFFICE_CLASSES)))
            raise ValueError(f"{folder}: missing or unknown class folders: {odd}. {_GET_OFFICE}")
        try:
            listed = datasets.ImageFolder(folder)
        except FileNotFoundError as error:
            raise ValueError(f"{folder}: {error}") from error
        made[domain] = ImageFiles(
            name=f"office-caltech/{domain}/images",
            paths=tuple(Path(path) for path, _ in listed.samples),
            y=np.array(listed.targets, dtype=np.int64),
            classes=len(OFFICE_CLASSES),
        )
    return made


def celeba(root: Path) -> Dataset:
    """Faces as features, with the attributes `CELEBA_ATTRIBUTES` as 0 and 1."""
    path = find_file(root, "celeba10k/efflite0.npz", _GET_CELEBA)
    arrays = read_npz(path, ("x", "y", "attributes"))
    _check_names(path, arrays["attributes"], CELEBA_ATTRIBUTES)
    x = _features(path, "x", arrays["x"], CELEBA_WIDTH)
    y = _labels(path, "y", arrays["y"], len(CELEBA_ATTRIBUTES))
    return _checked(path, "celeba", x, y, len(CELEBA_ATTRIBUTES))


def _mnist(root: Path, prefix: str, split: str) -> Dataset:
    # torchvision's MNIST class would take an old pickled copy for these files, if there is one.
    reader = import_torchvision().datasets.mnist
    paths = []
    for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
        path = find_file(root, f"MNIST/raw/{name}", _GET_MNIST)
        check_digest(path, DIGESTS[name], _GET_MNIST)
        paths.append(path)
    images, labels = reader.read_image_file(paths[0]), reader.read_label_file(paths[1])
    return _checked(paths[0], f"mnist-{split}", _unit(images.numpy()), labels.numpy(), _DIGITS)


def _usps(root: Path, file: str, split: str) -> Dataset:
    path = find_file(root, f"USPS/{file}", _GET_USPS)
    check_digest(path, DIGESTS[file], _GET_USPS)
    stored = import_torchvision().datasets.USPS(path.parent, train=split == "train")
    labels = np.array(stored.targets, dtype=np.int64)
    return _checked(path, f"usps-{split}", _unit(stored.data), labels, _DIGITS)


def _svhn_split(folder: Path, split: str) -> tuple[FloatArray, LabelArray]:
    path = folder / f"{split}_32x32.mat"
    import_scipy_io(path)
    try:
        stored = import_torchvision().datasets.SVHN(folder, split=split)
    except RuntimeError as error:
        raise ValueError(
            f"{path}: its checksum is not that of the standard file: remove it and get it again. "
            f"{_GET_SVHN}"
        ) from error
    x = np.empty((len(stored.data), _SVHN_SIDE, _SVHN_SIDE), dtype=np.float32)
    for start in range(0, len(x), _ROWS):
        some = _unit(stored.data[start : start + _ROWS])
        x[start : start + _ROWS] = np.tensordot(some, _LUMA, axes=(1, 0))
    return x, stored.labels


def _svhn_stand_in(path: Path) -> Dataset:
    arrays = read_npz(path, ("x", "y"))
    x, y = arrays["x"], _labels(path, "y", arrays["y"])
    if x.dtype != np.uint8 or x.shape[1:] != (_SVHN_SIDE, _SVHN_SIDE):
        raise ValueError(f"{path}: x must be uint8 of shape (n, 32, 32), got {x.dtype} {x.shape}")
    return _checked(path, "svhn-stand-in", _unit(x), y, _DIGITS)


def _office_surf(root: Path, domain: str) -> Dataset:
    path = find_file(root, f"office_caltech10/surf/{domain}.mat", _GET_OFFICE)
    arrays = read_mat(path, ("fts", "labels"))
    counts = arrays["fts"]
    if counts.dtype.kind not in "iuf":
        raise ValueError(f"{path}: fts must be numbers, got {counts.dtype}")
    x = _features(path, "fts", counts.astype(np.float32), OFFICE_WIDTHS["surf"])
    sums = x.sum(axis=1, keepdims=True)
    if (sums == 0).any():
        raise ValueError(f"{path}: fts holds an empty histogram")
    y = _labels(path, "labels", arrays["labels"].reshape(-1)) - 1
    return _checked(path, f"office-caltech/{domain}/surf", x / sums, y, len(OFFICE_CLASSES))


def _unit(pixels: npt.NDArray[np.uint8]) -> FloatArray:
    return pixels.astype(np.float32) / np.float32(255)


def _features(path: Path, key: str, x: npt.NDArray[Any], width: int) -> FloatArray:
    """Feature maps here end in a rectifier or count: a negative value is of something else."""
    if x.dtype.kind != "f" or x.ndim != 2 or x.shape[1] != width:
        raise ValueError(
            f"{path}: {key} must be floats of shape (n, {width}), got {x.dtype} {x.shape}"
        )
    if (x < 0).any():
        raise ValueError(f"{path}: {key} holds negative features")
    return x.astype(np.float32)


def _labels(path: Path, key: str, y: npt.NDArray[Any], columns: int | None = None) -> LabelArray:
    """One label for each point, or as many as there are columns."""
    shape = "(n,)" if columns is None else f"(n, {columns})"
    if y.dtype.kind not in "iu" or y.shape != (*y.shape[:1], *([columns] if columns else [])):
        raise ValueError(
            f"{path}: {key} must be integers of shape {shape}, got {y.dtype} {y.shape}"
        )
    return y.astype(np.int64)


def _check_names(path: Path, found: npt.NDArray[Any], names: tuple[str, ...]) -> None:
    if found.dtype.kind != "U" or found.shape != (len(names),) or tuple(found) != names:
        raise ValueError(f"{path}: its classes must be, in this order, {', '.join(names)}")


def _checked(path: Path, name: str, x: FloatArray, y: LabelArray, classes: int) -> Dataset:
    """A dataset in which every class has a point; what is wrong with it is said with its path."""
    try:
        made = Dataset(name, x, y, classes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not made.multi_label:
        absent = np.flatnonzero(np.bincount(y, minlength=classes) == 0)
        if len(absent):
            which = ", ".join(map(str, absent))
            raise ValueError(f"{path}: {name} has no points of class {which} of {classes}")
    elif len(made) == 0:
        raise ValueError(f"{path}: {name} has no points")
    return made
