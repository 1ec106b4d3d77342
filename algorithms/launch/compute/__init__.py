"""Devices and processes.

devices        which devices serve which trials
hosts          several processes that train together
programs       the compiled programs of a run
population     a population of members as one trial
split          one trial shared over devices
evolution      who is replaced in a population, and how floats change
interrupts     `launch.Stop`, Ctrl-C and SIGTERM
"""
