"""Prefect blocks: saved settings that flows and deployments share."""

from batchmill.blocks.dataset_store import DatasetStore
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved_job import SavedJob

__all__ = ["DatasetStore", "RayCluster", "SavedJob"]
