//! The key-value view that the metadata cores read, and the transaction that buffers what they write.
//!
//! A store is anything that reads keys and scans ranges in byte order ([`View`]). A core runs against a [`Txn`]: an
//! overlay of buffered writes over a view. It reads its own writes, performs no I/O beyond the view and may be run
//! again from the start by a store that lost a race; the driver applies [`Txn::into_writes`] in one atomic step.
//!
//! Invariants: what a transaction read and wrote depends on nothing but the view and its arguments; a transaction
//! that is dropped leaves nothing.

use super::keys::FORMAT;
use std::collections::BTreeMap;

/// Bytes of one key.
pub type Key = Vec<u8>;
/// Bytes of one value.
pub type Value = Vec<u8>;
/// What a transaction changes, in key order: a value to put, or `None` to delete.
pub type Writes = BTreeMap<Key, Option<Value>>;

/// Why a view could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The store beneath failed.
    #[error("{0}")]
    Failed(String),
    /// A record is there but is not one that this version writes.
    #[error(
        "a {what} record of {length} bytes does not parse: the store is damaged or was written by a newer version"
    )]
    Damaged {
        /// The kind of record.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A whole record of another format: read as if it were ours it could give wrong bytes.
    #[error(
        "a {what} record has format {found}, this build reads {FORMAT}: use the build that wrote the store, and copy \
         the objects to a new one"
    )]
    Format {
        /// The kind of record.
        what: &'static str,
        /// Its format.
        found: u8,
    },
}

/// Read access to an ordered key-value store, consistent for as long as it is held.
pub trait View {
    /// The value of `key`.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, ViewError>;

    /// Entries with `from <= key < to` in byte order, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Key, Value)>, ViewError>;

    /// The record at `key` is damaged, and a core went on without it: a driver says so to whoever runs the server. A core
    /// that runs again says it again.
    fn left_out(&self, key: &[u8], error: &ViewError) {
        let _ = (key, error);
    }
}

/// Buffered writes over a view.
pub struct Txn<'v> {
    view: &'v dyn View,
    writes: Writes,
}

impl<'v> Txn<'v> {
    /// An empty transaction over `view`.
    pub fn new(view: &'v dyn View) -> Self {
        Self { view, writes: Writes::new() }
    }

    /// Puts `value` at `key`, over what was there.
    pub fn put(&mut self, key: Key, value: Value) {
        self.writes.insert(key, Some(value));
    }

    /// Deletes `key`; deleting what is not there succeeds.
    pub fn delete(&mut self, key: Key) {
        self.writes.insert(key, None);
    }

    /// Forgets everything written so far.
    pub fn clear(&mut self) {
        self.writes.clear();
    }

    /// What is to be applied, atomically.
    pub fn into_writes(self) -> Writes {
        self.writes
    }
}

impl View for Txn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, ViewError> {
        match self.writes.get(key) {
            Some(buffered) => Ok(buffered.clone()),
            None => self.view.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Key, Value)>, ViewError> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let mut merged = BTreeMap::new();
        let buffered = || {
            self.writes.range::<[u8], _>((core::ops::Bound::Included(from), core::ops::Bound::Excluded(to)))
        };
        // Every buffered delete may hide one stored entry, so that many more are read than asked for.
        let hidden = buffered().filter(|(_, value)| value.is_none()).count();
        merged.extend(self.view.scan(from, to, limit.saturating_add(hidden))?);
        for (key, value) in buffered() {
            match value {
                Some(value) => merged.insert(key.clone(), value.clone()),
                None => merged.remove(key),
            };
        }
        Ok(merged.into_iter().take(limit).collect())
    }

    fn left_out(&self, key: &[u8], error: &ViewError) {
        self.view.left_out(key, error);
    }
}

/// Runs `body` over `view` and gives its result with the writes to apply; `body` may be run again by the caller.
pub fn transact<R>(view: &dyn View, body: impl Fn(&mut Txn<'_>) -> R) -> (R, Writes) {
    let mut txn = Txn::new(view);
    let result = body(&mut txn);
    (result, txn.into_writes())
}

/// A store in memory: for the simulated driver and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStore(BTreeMap<Key, Value>);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies what a transaction wrote.
    pub fn apply(&mut self, writes: Writes) {
        for (key, value) in writes {
            match value {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }

    /// Every entry in key order.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.0.iter()
    }
}

impl View for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, ViewError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Key, Value)>, ViewError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let range = (core::ops::Bound::Included(from), core::ops::Bound::Excluded(to));
        Ok(self
            .0
            .range::<[u8], _>(range)
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }
}

impl From<ViewError> for crate::message::MetaFault {
    fn from(error: ViewError) -> Self {
        Self::Store(error.to_string())
    }
}
