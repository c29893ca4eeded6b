"""New data: what is watched, what rings, and what is announced."""
