"""Flags, and what each of them does.

cli            `launch.main`: the command line of an algorithm's file
flags          its flags, made of a Config
presets        settings known to work
catalogue      --list
console        the command of an installed kit
"""
