"""Simulation: the real core against a device, workloads and other tenants that are made up."""
