//! The table of records as the metadata cores see it: as a snapshot has it, and as a batch of changes makes it. And why redb did not do
//! what it was asked for.

use crate::census::Deltas;
use redb::{ReadableTable, TableDefinition};
use std::{
    cell::Cell,
    io::ErrorKind,
    panic::{self, AssertUnwindSafe},
};
use steadfast_protocol::meta::{self, Counted, Txn, View, ViewError, Writes, transact};

pub(crate) const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("steadfast-meta-1");

/// Changes that become durable together.
pub struct Batch<'t> {
    pub(crate) table: TableView<redb::Table<'t, &'static [u8], &'static [u8]>>,
    pub(crate) written: bool,
    /// Whether any of it is of what is registered.
    pub(crate) registers: bool,
    /// How many counted records came and went.
    pub(crate) deltas: Deltas,
}

impl<'t> Batch<'t> {
    /// No changes so far.
    pub(crate) fn new(table: redb::Table<'t, &'static [u8], &'static [u8]>) -> Self {
        Self { table: TableView::new(table), written: false, registers: false, deltas: Deltas::new() }
    }

    /// Runs `body` in a transaction of its own and applies what it wrote; later transactions of the batch see it.
    pub fn transact<R>(&mut self, body: impl Fn(&mut Txn<'_>) -> R) -> R {
        let (result, writes) = transact(&self.table, body);
        self.apply(writes);
        result
    }

    fn apply(&mut self, writes: Writes) {
        for (key, value) in writes {
            let now = i64::from(value.is_some());
            let before = match value {
                Some(value) => {
                    self.table.table.insert(key.as_slice(), value.as_slice()).map(|old| old.is_some())
                }
                None => self.table.table.remove(key.as_slice()).map(|old| old.is_some()),
            };
            self.written = true;
            self.registers |= meta::is_of_registry(&key);
            match before {
                Ok(before) => {
                    if let Some(kind) = Counted::of(&key) {
                        *self.deltas.entry(kind).or_default() += now - i64::from(before);
                    }
                }
                Err(error) => {
                    // The whole batch is given up: `write` looks at this before it commits.
                    self.table.note(failed(error));
                    return;
                }
            }
        }
    }
}

/// A redb table as the cores see it. Remembers the first failure, for a core's answer does not carry it.
pub(crate) struct TableView<T> {
    table: T,
    pub(crate) error: Cell<Option<Failure>>,
    /// Damaged records that a core went on without.
    pub(crate) left_out: Cell<Vec<(Vec<u8>, ViewError)>>,
}

impl<T> TableView<T> {
    pub(crate) fn new(table: T) -> Self {
        Self { table, error: Cell::new(None), left_out: Cell::default() }
    }

    fn note(&self, failure: Failure) -> ViewError {
        let error = failure.error.clone();
        self.error.set(Some(self.error.take().unwrap_or(failure)));
        error
    }
}

impl<T: ReadableTable<&'static [u8], &'static [u8]>> View for TableView<T> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ViewError> {
        let value = self.table.get(key).map_err(|error| self.note(failed(error)))?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ViewError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let entries = self.table.range(from..to).map_err(|error| self.note(failed(error)))?;
        entries
            .take(limit)
            .map(|entry| match entry {
                Ok((key, value)) => Ok((key.value().to_vec(), value.value().to_vec())),
                Err(error) => Err(self.note(failed(error))),
            })
            .collect()
    }

    fn left_out(&self, key: &[u8], error: &ViewError) {
        let mut left_out = self.left_out.take();
        left_out.push((key.to_vec(), error.clone()));
        self.left_out.set(left_out);
    }
}

/// Why redb did not do what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: ViewError,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It could not.
    Itself,
    /// Something failed before, whoever asked for that: redb takes no request more until it is opened again.
    Earlier,
    /// The disk takes no more.
    NoRoom,
}

impl From<ViewError> for Failure {
    fn from(error: ViewError) -> Self {
        Self { error, why: Why::Itself }
    }
}

/// Runs `body`; redb panics on pages that no redb wrote, which is the disk's fault and must end no server.
pub(crate) fn contain<R>(body: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    // What a panic leaves behind is the transaction, which is given up: its database is opened again or only read.
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(ViewError::Failed("the database met a page that it cannot read".to_owned()).into())
    })
}

pub(crate) fn failed(error: impl Into<redb::Error>) -> Failure {
    let error = error.into();
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    let why = match &error {
        redb::Error::PreviousIo => Why::Earlier,
        redb::Error::Io(source) if full.contains(&source.kind()) => Why::NoRoom,
        _ => Why::Itself,
    };
    Failure { error: ViewError::Failed(error.to_string()), why }
}
