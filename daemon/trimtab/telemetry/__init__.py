"""What the daemon tells about itself: log lines, metrics, and the journal of its decisions."""
