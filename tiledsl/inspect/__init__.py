"""Looking at any stage of a kernel. Reads what the compiler made; changes nothing."""
