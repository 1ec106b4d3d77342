"""What trains and stores: runs and sweeps, from their settings to their last point.

settings and trials
settings       configs and trials as plain values
reading        what the words of a command line mean
grids          the settings of a sweep
distributions  `launch.Uniform`, `launch.Choice` and so on
populations    the ranges and rounds of population-based training
objectives     what a sweep ranks its settings by
options        what a run does besides training

training
schedule       which trials train in which stage, how long: halving, Hyperband, a retest
loop           chunks of trials, trained in turn
plans          which trials train at once
stages         the chunks of a sweep's stages
starts         where a chunk goes on
initial        the policies at which new trials begin
sources        what other trials have come to, from which trials begin
session        the loop over the points of a learning curve
record         the metrics and files of a session
outputs        what else a run does at its points, and its curve

programs and devices
trainer        a configuration on devices
programs       the compiled programs of a run
devices        which devices serve which trials
hosts          several processes that train together
split          one trial shared over devices
population     a population of members as one trial
evolution      who is replaced in a population, and how floats change
interrupts     `launch.Stop`, Ctrl-C and SIGTERM

files
experiment     a run or a sweep, and which of the two
run_dir        the directory of a run
sweep_dir      the directory of a sweep
loading        `launch.load`
outcomes       the results of a sweep, read back
files          files that appear whole, checkpoints
directories    directories that appear whole
description    config.json
versions       versions.json
locks          one process at a time
losses         files that could not be written

what people see of a run
metrics        metrics.csv, and what its columns are
results        the results of a sweep
alarms         what metrics warn of
progress       lines on stdout
pace           seconds and steps per second
brief          how a result prints itself
plots          learning curves and sweeps as pictures
lineage        the history of a population
errors         users' mistakes, warnings, output that nobody reads
"""
