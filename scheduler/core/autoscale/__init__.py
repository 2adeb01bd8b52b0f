"""How many replicas of which model should be awake, on which rung the others rest, and why."""
