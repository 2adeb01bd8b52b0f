"""The command line: penstock ..."""
