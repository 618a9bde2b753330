//! ISA-L's erasure code, opened at run time.
//!
//! The functions used (from its `erasure_code.h`); `a` are matrices of bytes, row by row:
//!
//! ```c
//! void gf_gen_cauchy1_matrix(unsigned char *a, int m, int k);   // (m x k) with the identity on top
//! int  gf_invert_matrix(unsigned char *in, unsigned char *out, const int n);
//! void ec_init_tables(int k, int rows, unsigned char *a, unsigned char *gftbls);   // 32 k rows bytes
//! void ec_encode_data(int len, int k, int rows, unsigned char *gftbls, unsigned char **data, unsigned char **coding);
//! ```

use super::Stripes;
use anyhow::{Result, ensure};
use libloading::Symbol;
use std::{ffi::c_int, fs, sync::OnceLock};

/// What Debian's package `libisal2` installs.
pub(super) const FILE: &str = "libisal.so.2";
/// Bytes of tables an element of the matrix.
const TABLE_LEN: usize = 32;
/// Shards in and out of one call.
const SHARDS_MAX: usize = 64;

type Generate = unsafe extern "C" fn(*mut u8, c_int, c_int);
type Invert = unsafe extern "C" fn(*mut u8, *mut u8, c_int) -> c_int;
type Tables = unsafe extern "C" fn(c_int, c_int, *mut u8, *mut u8);
type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *mut u8, *mut *mut u8, *mut *mut u8);

/// The opened library, kept open until the program ends.
pub(super) struct Library {
    name: String,
    generate: Symbol<'static, Generate>,
    invert: Symbol<'static, Invert>,
    tables: Symbol<'static, Tables>,
    encode: Symbol<'static, Encode>,
}

impl Library {
    /// The library, where it is installed.
    pub(super) fn open() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref()
    }

    fn load() -> Option<Self> {
        // SAFETY: loading runs the library's initialisers; ISA-L has none beyond the C runtime's.
        let library = unsafe { libloading::Library::new(FILE) }.ok()?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        // SAFETY: the types are those of the header quoted above, and the library is never closed.
        unsafe {
            Some(Self {
                name: format!("isa-l {}", version().as_deref().unwrap_or("of unknown version")),
                generate: library.get(b"gf_gen_cauchy1_matrix").ok()?,
                invert: library.get(b"gf_invert_matrix").ok()?,
                tables: library.get(b"ec_init_tables").ok()?,
                encode: library.get(b"ec_encode_data").ok()?,
            })
        }
    }
}

/// The version by the loaded file's name, `libisal.so.2.0.30` for 2.30: this library has no call that tells.
fn version() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let (_, version) = maps.lines().find_map(|line| line.rsplit_once("/libisal.so."))?;
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?, parts.nth(1)?);
    Some(format!("{major}.{minor}"))
}

/// A Cauchy code over one stripe shape, with the tables for encoding and for rebuilding the first m data shards.
pub(super) struct Code {
    library: &'static Library,
    data_shards: usize,
    parity_shards: usize,
    encode_tables: Vec<u8>,
    rebuild_tables: Vec<u8>,
}

impl Code {
    pub(super) fn new(library: &'static Library, data_shards: usize, parity_shards: usize) -> Result<Self> {
        let (k, m) = (data_shards, parity_shards);
        ensure!((1..=SHARDS_MAX).contains(&k) && (1..=k.min(SHARDS_MAX)).contains(&m), "{k} + {m} shards");
        let mut matrix = vec![0; (k + m) * k];
        // SAFETY: the matrix has (k + m) rows of k bytes.
        unsafe { (library.generate)(matrix.as_mut_ptr(), (k + m) as c_int, k as c_int) };
        // The rows of what is left when the first m shards are lost; the inverse's first m rows give those.
        let mut left = matrix[m * k..].to_vec();
        let mut inverse = vec![0; k * k];
        // SAFETY: both are k rows of k bytes: rows m..k + m, and k of them.
        let singular = unsafe { (library.invert)(left.as_mut_ptr(), inverse.as_mut_ptr(), k as c_int) };
        ensure!(singular == 0, "ISA-L's matrix has no inverse for {k} + {m}");
        let tables = |rows: &mut [u8]| {
            assert_eq!(rows.len(), m * k, "m rows of k bytes");
            let mut tables = vec![0; TABLE_LEN * m * k];
            // SAFETY: m rows of k bytes in, 32 bytes for each of them out.
            unsafe { (library.tables)(k as c_int, m as c_int, rows.as_mut_ptr(), tables.as_mut_ptr()) };
            tables
        };
        let encode_tables = tables(&mut matrix[k * k..]);
        let rebuild_tables = tables(&mut inverse[..m * k]);
        Ok(Self { library, data_shards, parity_shards, encode_tables, rebuild_tables })
    }

    /// `outs` = the matrix behind `tables` times `sources`.
    fn product(&self, tables: &[u8], sources: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<()> {
        let (k, m) = (self.data_shards, self.parity_shards);
        ensure!((sources.len(), outs.len()) == (k, m), "{} and {} shards", sources.len(), outs.len());
        let len = sources[0].len();
        let lengths = sources.iter().map(|shard| shard.len()).chain(outs.iter().map(|shard| shard.len()));
        ensure!(lengths.into_iter().all(|other| other == len), "shards of different lengths");
        let mut from = [std::ptr::null_mut(); SHARDS_MAX];
        let mut to = [std::ptr::null_mut(); SHARDS_MAX];
        from.iter_mut().zip(sources).for_each(|(at, shard)| *at = shard.as_ptr().cast_mut());
        to.iter_mut().zip(outs).for_each(|(at, shard)| *at = shard.as_mut_ptr());
        assert_eq!(tables.len(), TABLE_LEN * m * k, "tables of this shape");
        // SAFETY: k pointers to `len` bytes that are only read, m to `len` bytes borrowed for writing, tables of
        // 32 k m bytes that are only read.
        unsafe {
            (self.library.encode)(
                c_int::try_from(len)?,
                k as c_int,
                m as c_int,
                tables.as_ptr().cast_mut(),
                from.as_mut_ptr(),
                to.as_mut_ptr(),
            );
        }
        Ok(())
    }
}

impl Stripes for Code {
    fn name(&self) -> String {
        self.library.name.clone()
    }

    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        self.product(&self.encode_tables, data, parity)
    }

    fn rebuild(&mut self, lost: &mut [&mut [u8]], others: &[&[u8]]) -> Result<()> {
        self.product(&self.rebuild_tables, others, lost)
    }
}
