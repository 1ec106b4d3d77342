"""What a saved run gives to others.

initial        the policies at which new trials begin
export         `launch.export`
"""
