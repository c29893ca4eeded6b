"""The Python calls: what `import batchmill` offers besides reading a dataset."""
