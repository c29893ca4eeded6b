"""Export a dataset to the shards of a training format: WebDataset or Hugging Face."""
