"""The Prefect server and the Ray that a run talks to: found, or started for it, and left."""
