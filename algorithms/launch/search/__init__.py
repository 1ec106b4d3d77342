"""Which settings train, and for how long.

grids          the settings of a sweep: `launch.Uniform`, `launch.LogUniform`
"""
