"""Requests, conversations and streams: what is waiting, what runs, and how it survives changes."""
