"""What tests share: servers, runs in this process, comparisons."""
