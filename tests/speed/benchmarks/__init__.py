"""Benchmarks of asv."""
