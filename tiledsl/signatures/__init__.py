"""What a decorated function takes: its source, its annotations, and what a launch makes of them."""
