"""The imperative shell: the clock, the tick loop, the execution of actions, reload."""
