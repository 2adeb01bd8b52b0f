"""What the code must look like, as tests."""
