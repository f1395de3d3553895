"""What is refused, with the reason, before anything relies on it."""
