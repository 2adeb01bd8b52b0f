"""What fairness costs under backlog: see __main__."""
