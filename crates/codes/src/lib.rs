//! Block arithmetic: rateless codes and the kernels beneath them. No I/O, no clock.
