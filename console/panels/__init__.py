"""Parts that more than one page shows: keys, limits, money and usage of one organisation."""
