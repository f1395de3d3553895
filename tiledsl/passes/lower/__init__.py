"""From the tile level to the thread level: explicit addresses and instructions."""
