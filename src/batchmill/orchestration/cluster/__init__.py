"""Run shards on Ray: connect to it, check its nodes, and submit shards as task runs."""

import logging

# When Ray is imported in a notebook, it logs which packages would improve its own outputs there.
# The user of a run sees none of these outputs.
logging.getLogger("ray.widgets").setLevel(logging.WARNING)
