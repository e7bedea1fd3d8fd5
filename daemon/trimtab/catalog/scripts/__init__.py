"""Programs for the build environment, run by path: nothing of trimtab can be imported there."""
