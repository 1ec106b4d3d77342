"""What trains and stores: runs and sweeps, from their settings to their last point.

settings and trials
settings       configs and trials as plain values
reading        what the words of a command line mean
grids          the settings of a sweep
distributions  `launch.Uniform`, `launch.Choice` and so on
objectives     what a sweep ranks its settings by
options        what a run does besides training

training
schedule       which trials train in which stage, how long: halving, Hyperband, a retest
loop           chunks of trials, trained in turn
stages         the chunks of a sweep's stages: which trials train at once
states         which whole states stay when a sweep is over
starts         where a chunk goes on
initial        the policies at which new trials begin
sources        what other trials have come to, from which trials begin
session        the loop over the points of a learning curve
record         the metrics and files of a session, and what could not be written
outputs        what else a run does at its points, and its curve

programs and devices
programs       a configuration on devices, and its compiled programs
devices        which devices serve which trials, or share one
hosts          several processes that train together, and one at a time in a directory
population     a population of members as one trial, and its settings
evolution      who is replaced in a population, and how floats change
interrupts     `launch.Stop`, Ctrl-C and SIGTERM

files
experiment     a run or a sweep, and which of the two; directories that appear whole
run_dir        the directory of a run, and its config.json
sweep_dir      the directory of a sweep
loading        `launch.load`
outcomes       the results of a sweep, read back
files          files that appear whole, checkpoints
versions       versions.json

what people see of a run
metrics        metrics.csv, what its columns are, and what they warn of
results        the results of a sweep
intervals      what the scores of a few seeds tell about all seeds
progress       lines on stdout, and how a result prints itself
plots          learning curves, sweeps and populations as pictures
errors         users' mistakes, warnings, output that nobody reads
"""
