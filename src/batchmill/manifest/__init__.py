"""Read and check manifests: tables of inputs in any of the supported forms."""

from batchmill.manifest.load import load_manifest
from batchmill.manifest.manifest import Manifest
from batchmill.manifest.source import ManifestLike

__all__ = ["Manifest", "ManifestLike", "load_manifest"]
