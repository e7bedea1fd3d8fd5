"""The controller's side of workers: processes, their supervision and the protocol."""
