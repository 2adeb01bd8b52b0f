"""Commands of the simulators: the only part of the product that imports `sim`."""
