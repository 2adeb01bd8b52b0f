"""GPU economics: what hosts cost, whom it goes to, what is left; and whether engines and books agree."""
