"""`trimtab demo`: the main job shown on a real model, under real memory pressure."""
