"""Frozen values that pass between modules; no behaviour beyond arithmetic on themselves."""
