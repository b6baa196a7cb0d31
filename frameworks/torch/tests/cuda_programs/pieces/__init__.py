"""A folder of the program beside its scripts."""
