//! Runs of this program and of perftest in turns.
