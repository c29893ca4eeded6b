"""Prefect blocks: saved settings that flows and deployments share."""
