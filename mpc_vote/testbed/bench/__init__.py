"""Measures the secure argmax as it runs in service: processes, mutual TLS, a dealer, a network.

`cases` says what is measured, `jobs` what the driver and its parties tell each other, `committee`
runs the processes, `measure` the repeats, `groups` checks the planner, `report` and `plots` show
the result.
"""
