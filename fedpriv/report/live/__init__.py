"""For operators: events as log lines, metrics and health checks over HTTP, experiment trackers.

`logs`, `prometheus` and `serving` are independent of runs and are used by nodes too; `monitor` uses them for a run.
About a single client only this is reported: that it took part, or the code with which it refused.
"""
