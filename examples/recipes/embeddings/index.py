"""Keep a vector index up to date with a dataset, and search it.

Usage: python index.py update DATASET INDEX
       python index.py search DATASET INDEX QUESTION
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
from passages import encode
from usearch.index import Index


def update(dataset, place):
    """Add the new vectors to the index, and remove those that the dataset no longer has."""
    table = pyarrow.parquet.read_table(f"{dataset}/metadata.parquet", columns=["key", "vector"])
    # Equal texts have the same key.
    keys, rows = np.unique(table["key"].to_numpy(), return_index=True)
    vectors = np.stack(table["vector"].take(rows).to_numpy())
    known = Path(place).exists()
    index = Index.restore(place) if known else Index(ndim=vectors.shape[1], metric="cos")
    held = index.keys[:].astype(np.int64)
    new, gone = ~np.isin(keys, held), np.setdiff1d(held, keys)
    index.remove(gone)
    index.add(keys[new], vectors[new])
    index.save(place)
    print(f"{new.sum()} added, {len(gone)} removed, {len(index)} vectors in the index")


def search(dataset, place, question, count=3):
    """Return the passages that are nearest to a question: similarity, input and text."""
    found = Index.restore(place, view=True).search(encode([question])[0], count)
    similarity = {int(match.key): 1 - float(match.distance) for match in found}
    rows = pyarrow.parquet.read_table(
        f"{dataset}/metadata.parquet",
        columns=["key", "input", "text"],
        filters=[("key", "in", list(similarity))],
    ).to_pylist()
    results = [(similarity[row["key"]], row["input"], row["text"]) for row in rows]
    return sorted(results, reverse=True)


if __name__ == "__main__":
    if sys.argv[1] == "update":
        update(*sys.argv[2:])
    else:
        for score, name, text in search(*sys.argv[2:]):
            print(f"{score:.2f}  {name}: {text[:70]}")
