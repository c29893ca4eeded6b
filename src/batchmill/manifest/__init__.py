"""Read and check manifests: tables of inputs in any of the supported forms."""

from batchmill.manifest.load import Manifest, load_manifest
from batchmill.manifest.source import ManifestLike

__all__ = ["Manifest", "ManifestLike", "load_manifest"]
