//! Golden scripts of each core, and seeded whole reads against a small model of devices under credit.

mod adaptive;
mod chunks;
mod crowd;
mod hedge;
mod model;
mod parity;
mod ranged;
mod replicas;
mod scripts;
mod wishes;
