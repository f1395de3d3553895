"""SASS read back: what ptxas made of a kernel."""
