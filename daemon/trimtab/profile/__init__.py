"""Measures this device with real workers, and keeps what was found."""
