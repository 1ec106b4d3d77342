"""Which settings train, and for how long.

grids          the settings of a sweep
distributions  `launch.Uniform`, `launch.Choice` and so on
studies        a sweep as an Optuna study
halving        successive halving and Hyperband: which trials train for how long
populations    the ranges and rounds of population-based training
"""
