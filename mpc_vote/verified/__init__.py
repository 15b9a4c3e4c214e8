"""Ballots that can't be stuffed: agents share bits, of which no string says more than a ballot may.

In a verified round an agent does not share numbers, which could be any, but bits, by exclusive or:

* for a one-hot vote a *pointer* to the class it goes to, or to no class;
* for counts of neighbours, and for attributes, *flags* with fixed weights for each class;
* for each cell its noise, as flags whose weights add up to twice a bound.

The committee turns the bits of all agents into shares of totals in one round of openings, each
under a mask of bits that nobody knows (`unmasking`). A pointer is one vote for at most one class
whatever its bits are, and noise is within its bound: there is nothing to catch. Flags of votes need
a check of how many they are on a query (`limits`): two more rounds open one bit for each query of
each agent, whether it has too many. Who has is left out of the round, and named.

Honest ballots stay hidden as long as parties and dealer follow the protocol, up to P-1 parties
pooling what they see. More than elsewhere rests on that: votes and noise pass through material of
their own, so a dealer that deals wrong numbers could drown the noise, and a party that opens wrong
bits could learn from whether the limit check fails.
"""
