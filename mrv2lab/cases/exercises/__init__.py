"""Write the repair yourself: each case's hints, and how repairs that people would try are recognised."""
