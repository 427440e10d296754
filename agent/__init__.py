"""The optimization loop: graph, proposers, budget, journal and run store."""
