"""Manifests: the table of inputs, from any of the forms in which people keep one."""

from batchmill.manifest.load import Manifest, ManifestLike, load_manifest

__all__ = ["Manifest", "ManifestLike", "load_manifest"]
