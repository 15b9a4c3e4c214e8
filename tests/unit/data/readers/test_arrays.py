"""Arrays of numpy are taken for a task if nothing of them is lost."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpc_vote.data.readers import BadRowsError, read, read_inputs, read_labelled
from mpc_vote.tasks import Task
from tests.unit.data.readers.tables import TABLE, TEXT

HEAD = 'format = 1\nname = "t"\nclasses = ["a", "b"]\n'
TAIL = '[features]\nmap = "raw"\n[vote]\nballot = "one_hot"\n'
VECTOR = Task.parse(f'{HEAD}[input]\nkind = "vector"\nshape = [2]\n{TAIL}')
IMAGE = Task.parse(f'{HEAD}[input]\nkind = "image"\nheight = 2\nwidth = 3\nchannels = 1\n{TAIL}')


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "u2", "i8", "?"])
def test_numbers_of_any_type_become_float32(dtype: str, tmp_path: Path) -> None:
    points = np.array([[0, 1], [1, 1]], dtype)
    data = read_labelled(saved(tmp_path / "a.npz", x=points, y=np.array([0, 1])), VECTOR)
    assert data.x.dtype == np.float32
    assert data.x.tolist() == [[0, 1], [1, 1]]
    np.save(tmp_path / "b.npy", points)
    assert read_inputs(tmp_path / "b.npy", VECTOR).rows.tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("dtype", ["u1", "i4", "u8"])
def test_pictures_become_bytes(dtype: str, tmp_path: Path) -> None:
    points = np.full((2, 2, 3), 255, dtype)
    data = read_labelled(saved(tmp_path / "a.npz", x=points, y=np.array(["b", "a"])), IMAGE)
    assert data.x.dtype == np.uint8
    assert (data.x.max(), data.y.tolist()) == (255, [1, 0])


@pytest.mark.parametrize(
    ("task", "points", "line"),
    [
        (VECTOR, np.array([[0, 0], [np.nan, 0]]), 2),
        (VECTOR, np.array([[0, 0], [0, 1e13]]), 2),
        (VECTOR, np.array([[0, 2**24 + 1], [0, 2**24]]), 1),
        (VECTOR, np.array([[0, 2**24 + 1], [0, 2**24 + 1.5]]), 1),
        (IMAGE, np.array([np.zeros((2, 3), int), np.full((2, 3), 256)]), 2),
        (TABLE, np.array([[0, 0, 0, 0], [5, 0, 0, 0]], np.float32), 2),
    ],
)
def test_a_row_that_would_change_is_bad(task: Task, points: Any, line: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=points)
    with pytest.raises(BadRowsError) as told:
        read_inputs(path, task)
    assert [one.line for one in told.value.bad] == [line]
    assert len(read_inputs(path, task, bad_rows="skip")) == 1


@pytest.mark.parametrize(
    ("task", "arrays", "why"),
    [
        (VECTOR, {"x": np.zeros((1, 3))}, r"have the shape \(2,\), those of x \(3,\)"),
        (VECTOR, {"z": np.zeros((1, 2))}, "must hold an array x"),
        (VECTOR, {"x": np.array([["a", "b"]])}, "points must be numbers"),
        (IMAGE, {"x": np.zeros((1, 2, 3), np.float32)}, "save x as uint8"),
        (VECTOR, {"x": np.zeros((1, 2)), "y": np.zeros(1)}, "y must hold whole numbers or class"),
        (VECTOR, {"x": np.zeros((2, 2)), "y": np.zeros(1, int)}, "2 rows but 1 labels"),
        (VECTOR, {"x": np.zeros((1, 2))}, "it has no labels"),
    ],
)
def test_what_does_not_fit_is_refused(
    task: Task, arrays: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"a\.npz: .*{why}"):
        read_labelled(saved(tmp_path / "a.npz", **arrays), task)


def test_texts_of_an_array(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=np.array(["hi", " "]), y=np.array([1, 0]))
    assert read_labelled(path, TEXT, bad_rows="skip").x[0, :3].tolist() == [104, 105, 0]


def test_objects_are_not_loaded_nor_is_it_advised(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[{}]]), allow_pickle=True)
    saved(tmp_path / "b.npz", x=np.array([[{}]]))
    (tmp_path / "c.npz").write_bytes(b"nothing of numpy's")
    for name in ("a.npy", "b.npz", "c.npz"):
        with pytest.raises(ValueError, match="not a whole file of numpy's arrays") as told:
            read_inputs(tmp_path / name, VECTOR)
        assert "pickle" not in str(told.value)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_rows_that_take_no_room_are_refused(name: str, tmp_path: Path) -> None:
    """Else a file of a few bytes would have a list of as many texts as it likes."""
    array = io.BytesIO()
    head = {"descr": "<U0", "fortran_order": False, "shape": (3,)}
    np.lib.format.write_array_header_1_0(array, head)
    (tmp_path / "a.npy").write_bytes(array.getvalue())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", array.getvalue())
    with pytest.raises(ValueError, match="not a whole file of numpy's arrays"):
        read_inputs(tmp_path / name, TEXT, bad_rows="skip")


def test_a_single_array_without_a_task_has_no_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give an \.npz with x and y"):
        read(tmp_path / "a.npy")
