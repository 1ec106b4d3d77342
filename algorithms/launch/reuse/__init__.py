"""Uses of a saved run's policy in other runs and programs.

initial        the policies at which new trials begin
export         `launch.export`
"""
