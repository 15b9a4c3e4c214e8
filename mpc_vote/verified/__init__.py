"""Ballots that can't be stuffed with votes: agents share bits, all of which are valid ballots.

In a verified round an agent does not share numbers, which could be any, but bits, by exclusive or:

* for a one-hot vote a *pointer* to the class it goes to, or to no class;
* for counts of k neighbours k such pointers, in a fresh, uniformly random order;
* for attributes a *flag* for each, of one vote;
* for each cell its noise, as flags whose weights add up to twice a bound.

The committee turns the bits of all agents into shares of totals by one B2A conversion
(`bit_conversion`): each pointer and flag is opened once, under a one-time mask of the dealer's, and
what follows until the argmax is local. A pointer becomes a unit vector whatever its bits are, so it
is one vote for at most one class. Nothing is checked, nobody is excluded and no form is invalid: a
check of votes has an outcome, and a party that spoils votes before the check would read them from
the outcome. An honest agent refuses to encode what is no ballot; a malicious one has its k votes on
a query, to give as it likes, or one vote for each attribute, also for more than tau.

**Sensitivity under malicious parties.** A party that opens wrong bits replaces pointers p by p xor
d and flags likewise, with a d that it chooses without knowing p: what it saw of p was uniform.

* *Instance level.* A record moves one vote. The order is uniform, so ballots of neighbouring data
  can be paired such that one pointer differs, and after any d one unit vector is replaced: D2^2 = 2
  for one-hot votes and counts. Flips keep the Hamming distance of flags: D2^2 = 2 tau.
* *Agent level.* For pointers the neighbour is the sum without the agent's row (its noise stays):
  one unit vector, or k of them, as with parties that follow the protocol. A ballot of pointers to
  no class would not do, as d makes votes of them. For flags it is a row of noes: D2^2 = tau.

**What rests on more.** Against parties that follow the protocol, up to P-1 of them pooling what
they see, the printed epsilon holds. A malicious party can move votes, and can change the
distribution of agents' noise within its bound by flipping its bits, so against malicious parties
the printed epsilon is *not* shown to hold; noise drawn by the committee is to replace the noise
bits, and until then rounds that are not verified are what to use against such parties. A dealer
that deals wrong preprocessing, uncaught, could drown the noise. Noise bits are a stuffing channel
too: at their bound a few agents decide labels (`tests/security/verified/test_noise_bits.py`).
"""
