"""What hostile bodies of one customer do to the open streams of another."""
