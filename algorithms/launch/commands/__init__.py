"""Flags, and what each of them does.

cli            `launch.main`: the command line of an algorithm's file
flags          its flags, made of a Config
presets        settings known to work
catalogue      --list
copies         --copy
bundle         a file with what it uses of the kit, as one text
alone          what some of the kit's definitions are in a copy
console        the command of an installed kit
"""
