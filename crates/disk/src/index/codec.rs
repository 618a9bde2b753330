//! Little-endian fields in and out of byte strings.

/// The bytes end before the field does, or a field holds what it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed bytes in the index: {what}")]
pub struct Malformed {
    /// Which field, or what is wrong.
    pub what: &'static str,
}

/// Takes fields off the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed { what: "cut short" })?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed { what: "cut short" })?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Malformed> {
        self.take().map(u128::from_le_bytes)
    }
}

/// Appends fields.
pub(super) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_u128(&mut self, value: u128) {
        self.put(&value.to_le_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
