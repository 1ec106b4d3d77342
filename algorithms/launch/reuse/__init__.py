"""Uses of a saved run's policy in other runs and programs.

initial        the policies at which new trials begin
gathering      a run of trials that other runs have trained
export         `launch.export`
"""
