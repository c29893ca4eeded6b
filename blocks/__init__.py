"""Prefect blocks: saved settings that flows and deployments share."""

from batchmill.blocks.ray_cluster import RayCluster

__all__ = ["RayCluster"]
