"""Coverage-guided fuzzing of six parsers, by atheris: ``./dev fuzz``.

`targets` says for each parser what must be true of any input.  ``corpus`` has the inputs to begin with, and each one
that ever broke a promise; the usual tests run them without atheris.  `one` fuzzes one target, `planted` puts a fault
into its parser first, and `served` sends inputs to a real daemon while an honest client puts records.
"""
