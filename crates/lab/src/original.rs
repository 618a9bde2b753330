//! The bytes that an experiment stores, and the check that it gets the same ones back.

use crate::report::NotOffered;
use anyhow::{Context, Result};
use bytes::Bytes;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    fs::File,
    io::{self, Cursor, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use steadfast_client::{Memory, Source};

/// What is stored: made from a seed, or a person's file.
#[derive(Clone, Debug)]
pub enum Original {
    /// Held in memory.
    Made(Arc<[u8]>),
    /// Read from where it lies, each time.
    File(PathBuf, u64),
}

impl Original {
    /// `length` bytes made from `seed` (generator: PCG-64-MCG).
    pub fn make(length: usize, seed: u64) -> Self {
        Self::Made(made(length, seed).into())
    }

    /// The file at `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(path: &Path) -> Result<Self> {
        let open = || File::open(path)?.metadata();
        let found = open().with_context(|| format!("cannot read {}", path.display()))?;
        // It is read again and again.
        if !found.is_file() {
            return Err(NotOffered(format!("{} is no regular file", path.display())).into());
        }
        Ok(Self::File(path.to_owned(), found.len()))
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Made(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// A reader of all of it.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Made(bytes) => Box::new(Cursor::new(Arc::clone(bytes))),
            Self::File(path, _) => {
                Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?)
            }
        })
    }

    /// All of it as what a put stores: of what is in memory nothing is copied.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        Ok(match self {
            Self::Made(bytes) => Box::new(Memory(Bytes::from_owner(Arc::clone(bytes)))),
            Self::File(..) => Box::new(self.reader()?),
        })
    }

    /// A sink that compares what it is given with this.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn comparison(&self) -> Result<(Comparison, Compared)> {
        let compared = Compared::default();
        let reader = self.reader()?;
        Ok((Comparison { reader, expected: Vec::new(), compared: compared.clone() }, compared))
    }
}

/// The bytes that [`Original::make`] holds.
pub(crate) fn made(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Counts of a [`Comparison`], readable after the sink was given away.
#[derive(Clone, Debug, Default)]
pub struct Compared(Arc<[AtomicU64; 2]>);

impl Compared {
    /// Bytes taken.
    pub fn taken(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Bytes that were not as expected.
    pub fn wrong(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }
}

/// A sink that compares.
pub struct Comparison {
    reader: Box<dyn Read + Send>,
    expected: Vec<u8>,
    compared: Compared,
}

impl Write for Comparison {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.expected.resize(bytes.len(), 0);
        let mut read = 0;
        while read < bytes.len() {
            match self.reader.read(&mut self.expected[read..])? {
                0 => break,
                more => read += more,
            }
        }
        let wrong = if read == bytes.len() && self.expected == bytes {
            0
        } else {
            let same = self.expected[..read].iter().zip(bytes).filter(|(a, b)| a == b).count();
            bytes.len() - same
        };
        self.compared.0[0].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.compared.0[1].fetch_add(wrong as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_counted() {
        let original = Original::make(10_000, 5);
        let mut bytes = Vec::new();
        original.reader().unwrap().read_to_end(&mut bytes).unwrap();
        bytes[7_777] ^= 1;
        let (mut sink, compared) = original.comparison().unwrap();
        for piece in bytes.chunks(999) {
            sink.write_all(piece).unwrap();
        }
        assert_eq!((compared.taken(), compared.wrong()), (10_000, 1));
    }
}
