"""Models over inputs."""
