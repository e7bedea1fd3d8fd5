"""Policies: from YAML to immutable values, and from values to bounds on knobs."""
