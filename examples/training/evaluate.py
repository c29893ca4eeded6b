"""Compare predictions with labels in each partition.

python evaluate.py PREDICTIONS
"""

import sys
from pathlib import Path

import pandas as pd


def main(predictions: Path) -> None:
    """Print the accuracy of each partition, and the confusion matrix of the test partition."""
    table = pd.read_parquet(predictions / "metadata.parquet")
    right = (table["predicted"] == table["label"]).groupby(table["partition"])
    print(pd.DataFrame({"clips": right.size(), "right": right.mean().map("{:.1%}".format)}))
    test = table[table["partition"] == "test"]
    print()
    print(pd.crosstab(test["label"], test["predicted"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
