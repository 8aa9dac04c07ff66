"""Deployment: a rehearsal on one machine, container files, examples."""
