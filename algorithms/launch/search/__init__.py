"""Which settings train, and for how long.

grids          the settings of a sweep
distributions  what is drawn: `launch.Uniform`, `launch.Choice` and so on
outcomes       what came of a sweep, read back
studies        a sweep as an Optuna study
halving        successive halving and Hyperband: which trials train for how long
populations    the ranges and rounds of population-based training
"""
