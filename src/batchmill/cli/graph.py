"""`batchmill graph`: the datasets that a dataset is made of."""

from batchmill.api.jobs.lineage import lineage
from batchmill.api.jobs.lineage import mermaid as diagram
from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json


def graph(dataset: Dataset, /, *, mermaid: bool = False, json: Json = False) -> None:
    """Show the datasets that a dataset is made of: their versions, ages and failures.

    Also shows which were made of an earlier version of the one before. Only the datasets are read.
    To compare files and code, too: batchmill update DATASET --deep --plan

    ```
    batchmill graph embeddings
    batchmill graph embeddings --mermaid
    ```

    Args:
        mermaid: Print a diagram for Mermaid, which GitHub and notebooks draw.
    """
    links = lineage(str(dataset))
    if json:
        print_json([link._asdict() for link in links])
    elif mermaid:
        console().print(diagram(links))
    else:
        out = console()
        out.print(links[0].manifest)
        for depth, link in enumerate(links, 1):
            out.print(f"{'  ' * depth}{link.text}")
