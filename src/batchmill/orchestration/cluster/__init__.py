"""Run shards on Ray: connect to it, check its nodes, and submit shards as task runs."""

import logging
import warnings

# When Ray is imported in a notebook, it logs which packages would improve its own outputs there,
# and tqdm, which it imports, warns. The user of a run sees none of these outputs.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("ray.widgets").setLevel(logging.WARNING)
