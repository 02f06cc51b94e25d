"""How many instructions a record takes in the functions that every record passes: ``./dev bench instructions``.

Counted by qemu-user, whatever else the machine does, and compared with the budget that each function has.
"""
