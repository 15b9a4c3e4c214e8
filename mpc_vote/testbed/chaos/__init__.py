"""Fault simulation: real processes, a wire that the harness owns, and faults at every message.

Every message of a round is a step at which something can go wrong; the list of steps comes from a
round in which nothing does. After each fault the invariants are checked from what is on disk.
"""
