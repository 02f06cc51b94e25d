"""How many records one program puts in a second, one by one and together, and how many the KPL's addUserRecord."""
