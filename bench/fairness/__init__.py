"""The fairness benchmark, described in __main__."""
