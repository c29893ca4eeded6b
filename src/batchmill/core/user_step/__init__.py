"""Load the user's step, check its parameters, and identify its version."""
