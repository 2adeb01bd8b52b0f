"""What arrives: readers of public traces and generators."""
