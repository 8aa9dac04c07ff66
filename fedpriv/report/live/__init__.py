"""What whoever runs the tool in earnest needs: events as log lines, metrics and health over HTTP, a graceful stop.

`logs`, `metrics` and `serving` know nothing of runs and serve a node as well; `monitor` is a run's use of them.
Nothing here says more of a client than that it took part, or the code with which it did not.
"""
