//! Protocol and policy cores: state machines without I/O, clock, threads or randomness.
