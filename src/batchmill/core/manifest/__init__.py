"""Read and check manifests: tables of inputs in any of the supported forms."""

from batchmill.core.manifest.load import load_manifest
from batchmill.core.manifest.manifest import Manifest
from batchmill.core.manifest.source import ManifestLike

__all__ = ["Manifest", "ManifestLike", "load_manifest"]
