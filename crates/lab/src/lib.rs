//! Experiments on real local clusters: the demo, the six devices, and their reports.
