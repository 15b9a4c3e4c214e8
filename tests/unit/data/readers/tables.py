"""A small task of a table, and files that go with it."""

from __future__ import annotations

from pathlib import Path

from mpc_vote.tasks import Task

TABLE = Task.parse("""
format = 1
name = "sepsis"
classes = ["no", "yes"]
[input]
kind = "table"
label = "died"
ignored = ["pid"]
[[input.columns]]
name = "age"
kind = "number"
center = 60.0
scale = 10.0
[[input.columns]]
name = "sex"
kind = "category"
values = ["Female", "Male", "NA"]
[[input.columns]]
name = "ward"
kind = "category"
values = ["1", "2"]
[features]
map = "standard"
[vote]
ballot = "knn_count"
k = 5
""")

TEXT = Task.parse("""
format = 1
name = "sms"
classes = ["ham", "spam"]
[input]
kind = "text"
text = "SMS"
label = "Label"
max_bytes = 16
[features]
map = "sentence"
model = "all-minilm-l6-v2"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
[vote]
ballot = "one_hot"
""")

HEADER = "pid,age,sex,ward,died\n"


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
