"""What runs inside a worker process: one loaded variant, its decoder and its loop."""
