"""Ballots that can't be stuffed: what an agent shares has no encoding but that of a valid ballot.

In a verified round an agent does not share numbers, which could be any, but bits, by exclusive or:

* for each vote a *pointer* to the class it goes to, or to no class (one vote with one-hot ballots,
  k with counts of k neighbours);
* for each cell its noise, as *flags* with fixed weights that add up to twice a bound;
* with attributes a flag for each instead of pointers.

The committee turns the bits of all agents into shares of totals in one round of openings, each
under a mask of bits that nobody knows (`unmasking`). Whatever bits an agent sends, it has cast at
most its votes, each for one class, and noise within the bound: a lie beyond that can't be said, so
there is nothing to catch, no soundness error, and nothing of an honest ballot is opened.

Attributes alone need a check, of how many an agent says yes to (`limits`): two more rounds open one
bit for each query of each agent, whether it has said yes too often. Who has is left out, and named.
"""
