//! Other libraries on the same work, behind two interfaces: stripes (k data shards, m parity shards) and objects
//! (K blocks, of which any K and a few are received).
//!
//! Compiled in by the feature `rivals`; without it there are none. Debian's ISA-L is opened at run time and left
//! out where it is not installed. Each gets what it wants outside of the timing: tables made, buffers allocated,
//! matrices inverted.

#[cfg(feature = "rivals")]
mod erasure;
#[cfg(feature = "rivals")]
#[allow(unsafe_code, reason = "ISA-L is a C library: this file declares its functions and calls them")]
mod isal;
#[cfg(feature = "rivals")]
mod raptorq;
#[cfg(feature = "rivals")]
mod simd;

use anyhow::Result;

/// A library's systematic code over one stripe shape.
pub trait Stripes {
    /// Name and version.
    fn name(&self) -> String;

    /// Computes the parity shards; libraries that keep them inside need not copy them out.
    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()>;

    /// Whether [`Stripes::rebuild`] is there.
    fn rebuilds(&self) -> bool {
        true
    }

    /// Computes the first m data shards (the lost ones, to be overwritten) from the k others of the stripe, which
    /// follow them: the data shards m.. and then all parity shards.
    fn rebuild(&mut self, lost: &mut [&mut [u8]], others: &[&[u8]]) -> Result<()>;

    /// The same for a library that asks for every shard of the stripe to be writable, lost or not; it does this one instead.
    fn rebuild_writable(&mut self, shards: &mut [&mut [u8]], lost_shards: usize) -> Result<()> {
        let (lost, others) = shards.split_at_mut(lost_shards);
        let others: Vec<&[u8]> = others.iter().map(|shard| &**shard).collect();
        self.rebuild(lost, &others)
    }

    /// Whether [`Stripes::rebuild_writable`] is the one to call.
    fn wants_writable(&self) -> bool {
        false
    }
}

/// A library's code over an object of K blocks.
pub trait Objects {
    /// Name and version, and where its blocks differ from ours how.
    fn name(&self) -> String;

    /// Computes `blocks` coded blocks from the originals, which lie one after the other; the seconds are those of
    /// the work alone. `seconds` times a piece of work.
    fn encode(&mut self, originals: &[u8], blocks: usize, seconds: Timer<'_>) -> Result<f64>;

    /// Decodes the object from coded blocks kept since `prepare_decode`, in the order given there; checks it.
    fn decode(&mut self, originals: &[u8], seconds: Timer<'_>) -> Result<f64>;

    /// Makes the coded blocks that [`Objects::decode`] takes: K and what the code needs of `order` (indices, the
    /// originals being those below K).
    fn prepare_decode(&mut self, originals: &[u8], order: &[u32]) -> Result<()>;
}

/// Times a piece of work, in seconds.
pub type Timer<'a> = &'a dyn Fn(&mut dyn FnMut()) -> f64;

/// The rivals for stripes of `data_shards` and `parity_shards` of `shard_len` bytes, a multiple of 64.
pub fn stripes(data_shards: usize, parity_shards: usize, shard_len: usize) -> Result<Vec<Box<dyn Stripes>>> {
    #[cfg(feature = "rivals")]
    {
        let mut rivals: Vec<Box<dyn Stripes>> = Vec::new();
        if let Some(library) = isal::Library::open() {
            rivals.push(Box::new(isal::Code::new(library, data_shards, parity_shards)?));
        }
        rivals.push(Box::new(simd::Stripe::new(data_shards, parity_shards, shard_len)?));
        rivals.push(Box::new(erasure::Stripe::new(data_shards, parity_shards)?));
        Ok(rivals)
    }
    #[cfg(not(feature = "rivals"))]
    {
        let _ = (data_shards, parity_shards, shard_len);
        Ok(Vec::new())
    }
}

/// The rivals for objects of `originals` blocks of `block_len` bytes.
pub fn objects(originals: usize, block_len: usize) -> Vec<Box<dyn Objects>> {
    #[cfg(feature = "rivals")]
    {
        vec![
            Box::new(raptorq::Object::new(originals, block_len)),
            Box::new(simd::Object::new(originals, block_len)),
        ]
    }
    #[cfg(not(feature = "rivals"))]
    {
        let _ = (originals, block_len);
        Vec::new()
    }
}

/// What a reader should know about the rivals of this run: those that are missing, and why.
pub fn remarks() -> Vec<String> {
    #[cfg(feature = "rivals")]
    {
        match isal::Library::open() {
            Some(_) => Vec::new(),
            None => vec![format!("ISA-L left out: {} is not installed", isal::FILE)],
        }
    }
    #[cfg(not(feature = "rivals"))]
    {
        vec!["rivals left out: not compiled in (`--features rivals`)".to_owned()]
    }
}

#[cfg(all(test, feature = "rivals"))]
mod tests;
