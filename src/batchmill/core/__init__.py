"""What a run builds on: manifest, plan, the user's step, records, stores, options."""
