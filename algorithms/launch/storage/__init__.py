"""Files and directories of runs and sweeps.

experiment     a run or a sweep, and which of the two
loading        `launch.load`
run_dir        the directory of a run
outcomes       the results of a sweep, read back
files          files that appear whole, checkpoints
directories    directories that appear whole
description    config.json
versions       versions.json
locks          one process at a time
losses         files that could not be written
"""
