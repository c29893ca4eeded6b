"""The committed outcomes of a dataset, and the lease that allows one writer."""
