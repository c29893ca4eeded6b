"""The base of all other packages: manifest, plan, the user's step, records, stores, options."""
