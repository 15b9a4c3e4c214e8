"""What all tests share."""

from hypothesis import settings

# Machines are busy and shared: an example may take long, and that proves nothing. The verdict on
# a commit depends on the commit alone; `pytest --hypothesis-profile explore` looks for new cases.
settings.register_profile("mpc-vote", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("mpc-vote")
