"""Ballots that can't be stuffed with votes, and noise that nobody knows or bends.

In a verified round an agent does not share numbers, which could be any, but bits, by exclusive or:

* for a one-hot vote a *pointer* to the class it goes to, or to no class;
* for counts of k neighbours k such pointers, in a fresh, uniformly random order;
* for attributes a *flag* for each, of one vote.

The committee draws the noise of each cell, as weighted *coins*: bits that are the exclusive or of
one from each party's own CSPRNG. It turns the bits of all agents and the coins into shares of noisy
totals by one B2A conversion (`bit_conversion`): each pointer, flag and coin is opened once, under a
one-time mask of the dealer's, and what follows until the argmax is local. A pointer becomes a unit
vector whatever its bits are, so it is one vote for at most one class. Nothing is checked, nobody is
excluded and no form is invalid: a check of votes has an outcome, and a party that spoils votes
before the check would read them from the outcome. An honest agent refuses to encode what is no
ballot; a malicious one has its k votes on a query, to give as it likes, or one vote for each
attribute, also for more than tau, and no more.

**Who sees what** (docs/security.md, section 8). One party and the dealer are honest; P-1 parties,
any agents, coordinator and clients are malicious. They see functions of the noisy totals of votes
that the parties may have shifted blindly: a party that opens wrong bits replaces pointers p by
p xor d and flags likewise, with a d that it chooses without knowing p, as what it saw of p was
uniform. A coin that is flipped is as uniform as before: the law of the noise is the same whatever
they do, whoever drops out or colludes. Labels can then be any.

**Sensitivity, for every d.**

* *Instance level.* A record moves one vote. The order is uniform, so ballots of neighbouring data
  can be paired such that one pointer differs, and after any d one unit vector is replaced: two
  cells move by a vote, for one-hot votes and counts. Flips keep the Hamming distance of flags:
  2 tau cells.
* *Agent level.* For pointers the neighbour is the sum without the agent's row: one unit vector, or
  k of them. A ballot of pointers to no class would not do, as d makes votes of them. For flags it
  is a row of noes: tau cells. The sum without the row would not do, as d makes yeses of noes.

**What is not held.** A dealer with one party, or all parties together, read votes and coins in the
clear: nothing is guaranteed then. A dealer that deals wrong preprocessing, uncaught, could drown
the noise.
"""
