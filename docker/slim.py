"""Takes out of an environment what running never needs: tests, headers, static libraries, pip."""

import shutil
import sys
from pathlib import Path

FOLDERS = (
    "pip", "pip-*.dist-info", "setuptools/_vendor/*/tests",
    "torch/include", "torch/share", "torch/test",
    "torch/testing/_internal/distributed", "torch/utils/benchmark", "sympy/*/tests",
    "numpy/*/tests",
    "networkx/**/tests", "onnx/backend/test", "onnx/test", "pandas/tests", "faiss/tests",
)  # fmt: skip
FILES = ("**/*.a", "**/*.pyi", "**/*.pxd", "**/*.c", "**/*.cpp", "**/*.h")


def main(environment: Path) -> None:
    """Deletes, and says how much it was."""
    (site,) = (environment / "lib").glob("python3*/site-packages")
    before = _size(site)
    for pattern in FOLDERS:
        for folder in site.glob(pattern):
            shutil.rmtree(folder)
    for pattern in FILES:
        for file in site.glob(pattern):
            file.unlink(missing_ok=True)
    print(f"slimmed from {before} to {_size(site)} MiB")


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) >> 20


if __name__ == "__main__":
    main(Path(sys.argv[1]))
