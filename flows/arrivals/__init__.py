"""New data: what is watched, which file-system events there are, and what is announced."""
