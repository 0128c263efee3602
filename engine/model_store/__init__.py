"""The models that this machine has, and those that Stoker brings by itself. No torch."""
