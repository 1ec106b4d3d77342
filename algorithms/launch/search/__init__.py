"""Which settings train, and for how long.

grids          the settings of a sweep: `launch.Uniform`, `launch.LogUniform`
halving        successive halving and Hyperband: which trials train for how long
"""
