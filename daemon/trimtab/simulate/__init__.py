"""Simulated time: scenarios of policies, and traces of requests through the planner."""
