//! One register of bytes: what XOR loops are written over, and what `lanes` adds multiplication to.

/// One register of bytes.
///
/// # Safety
/// Every method: the processor has the tier's instructions.
pub(super) trait Register: Copy {
    /// Bytes in a register.
    const BYTES: usize;
    /// How many there are.
    const REGISTERS: usize;
    unsafe fn zero() -> Self;
    /// # Safety
    /// `BYTES` bytes can be read at `from`.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// `BYTES` bytes can be written at `to`.
    unsafe fn store(self, to: *mut u8);
    /// A store past the caches.
    ///
    /// # Safety
    /// `BYTES` bytes can be written at `to`, a multiple of `BYTES`; a fence comes before anyone else reads them.
    unsafe fn stream(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    /// The sum of three. One instruction where there are such: compilers know.
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.xor(a.xor(b)) }
    }
}

/// What every target has.
#[derive(Clone, Copy)]
pub(super) struct Plain([u64; 2]);

impl Register for Plain {
    const BYTES: usize = 16;
    const REGISTERS: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0; 2])
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[u64; 2]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u64; 2]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self([self.0[0] ^ other.0[0], self.0[1] ^ other.0[1]])
    }
}

/// A byte: what is left of packets at the end of a chunk, and there is too little of it for more.
#[derive(Clone, Copy)]
pub(super) struct Byte(u8);

impl Register for Byte {
    const BYTES: usize = 1;
    const REGISTERS: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(0)
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.read() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.write(self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}
