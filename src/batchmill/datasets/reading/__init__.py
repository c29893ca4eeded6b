"""Read a dataset back: its files and labels as samples for training with torch."""
