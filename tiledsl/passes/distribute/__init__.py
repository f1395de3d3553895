"""What the block does together becomes what each thread does."""
