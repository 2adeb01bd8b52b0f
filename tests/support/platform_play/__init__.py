"""What a play of three months on a busy platform is made of: its clock, its people, its engines, and a model of it."""
