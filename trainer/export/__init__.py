"""Out to serving: a checkpoint as a folder that other programs run, and running what such a folder holds.

source.py   which checkpoint is meant, and what it says of its task and tokenizer
seen.py     what its model has seen, from the ledger
folder.py   the folder: files, manifest, published by a rename
graph.py    the network as a graph, for Paddle Inference and ONNX Runtime (imports Paddle)
runners.py  run a checkpoint or a folder that was made here: arrays in, scores out
"""
