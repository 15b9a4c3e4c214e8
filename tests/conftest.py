"""What all tests share."""

from hypothesis import settings

# Machines are busy and shared: an example may take long, and that proves nothing.
settings.register_profile("mpc-vote", deadline=None)
settings.load_profile("mpc-vote")
