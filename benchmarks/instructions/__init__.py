"""Count the instructions per record of the functions that every record passes: ``./dev bench instructions``.

qemu-user counts them, independently of other work on the machine.  The benchmark compares each function with its
budget.
"""
