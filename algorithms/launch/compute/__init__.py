"""Devices and processes.

devices        which devices serve which trials
hosts          several processes that train together
programs       the compiled programs of a run
interrupts     `launch.Stop`, Ctrl-C and SIGTERM
"""
