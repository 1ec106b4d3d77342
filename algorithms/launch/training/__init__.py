"""Runs and sweeps, from their settings to their last point.

runner         `launch.run`, `launch.sweep`, `launch.pbt` and `launch.resume`
loop           their chunks, trained in turn
stages         rungs of halving, and retests
starts         where a chunk goes on
options        what a run does besides training
trainer        a configuration on devices
plans          which trials train at once
session        the loop over the points of a learning curve
record         the files, trackers and pictures of a session
sweep_dir      the directory of a sweep
"""
