"""What runs on a GPU host, and how hosts come and go."""
