"""Studies: many runs with several seeds each, trained, evaluated and compared from one file."""
