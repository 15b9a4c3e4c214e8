"""Small tasks of every kind of input."""

from __future__ import annotations

from mpc_vote.tasks import Task

TABLE = Task.parse("""
format = 1
name = "triage"
classes = ["low", "high"]
[input]
kind = "table"
label = "risk"
[[input.columns]]
name = "age"
kind = "number"
center = 50.0
scale = 10.0
[[input.columns]]
name = "ward"
kind = "category"
values = ["a", "b"]
[features]
map = "standard"
[vote]
ballot = "one_hot"
""")

TEXT = Task.parse("""
format = 1
name = "mail"
classes = ["ham", "spam"]
[input]
kind = "text"
text = "text"
label = "label"
max_bytes = 40
[features]
map = "raw"
[vote]
ballot = "one_hot"
""")

PICTURES = Task.parse("""
format = 1
name = "signs"
classes = ["dark", "bright"]
[input]
kind = "image"
height = 4
width = 5
channels = 3
[features]
map = "raw"
[vote]
ballot = "one_hot"
""")

VECTORS = Task.parse("""
format = 1
name = "vectors"
classes = ["minus", "zero", "plus"]
[input]
kind = "vector"
shape = [3]
[features]
map = "raw"
[vote]
ballot = "one_hot"
""")

SIGNS = Task.parse("""
format = 1
name = "signs"
classes = ["-1", "0", "1"]
[input]
kind = "vector"
shape = [3]
[features]
map = "raw"
[vote]
ballot = "one_hot"
""")

ATTRIBUTES = Task.parse("""
format = 1
name = "attributes"
classes = ["first", "second"]
[input]
kind = "vector"
shape = [2]
[features]
map = "raw"
[vote]
ballot = "multi_label"
tau = 2
""")
