"""How agents vote and how the server learns from the labels.

Nothing is imported here: `knn` and `features` must stay free of torch, whose import alone costs an
agent several times the memory of its index.
"""
