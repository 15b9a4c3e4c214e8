"""Datasets, how they are split among agents, and parts as files."""

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, load_part, save_part, split_iid, split_skewed

__all__ = [
    "Dataset",
    "Partition",
    "load_embedded",
    "load_part",
    "save_part",
    "split_iid",
    "split_skewed",
]
