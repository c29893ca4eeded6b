"""A job from request to summary: plan it, run it, retry its failures."""
