"""Write the repair yourself: for each case the hints, and how repairs that people would try are recognised."""
