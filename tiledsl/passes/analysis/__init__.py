"""What passes ask of the IR: values, ranges, uniformity, lanes, what is written."""
