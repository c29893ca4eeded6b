"""Steps that run a model on inputs."""
