"""`trimtab bench`: what this machine does, measured; and real daemons to measure it with."""
