"""From a kernel's function to a built one, in memory and on disk, and what is explained of it."""
