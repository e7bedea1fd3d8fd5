"""The policies that come with trimtab."""

from trimtab.policy.shipped import shipped_folder as shipped_policies

__all__ = ["shipped_policies"]
