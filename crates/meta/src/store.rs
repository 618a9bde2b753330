//! The database file: one redb table of bytes to bytes, as the cores' keys lay it out.
//!
//! ```text
//!   dir/lock        held while a server runs
//!   dir/meta.redb   the database; made under another name and renamed once it has its cluster, so never half-made
//! ```
//!
//! Every commit is saved with redb's quick repair (allocator state in the commit, two-phase): opening after a crash
//! walks nothing, whatever the size. A commit costs two flushes for it; the writer's group commit shares them.
//!
//! redb takes no further request after an I/O error. The database is then closed and opened again: reads go on from
//! the last durable commit while the disk takes no writes.

use crate::{
    MetaError,
    census::{Census, Deltas},
    under_way::UnderWay,
};
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    TableError, TableHandle,
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io::{self, Read},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use steadfast_protocol::{
    ClusterId,
    meta::{self, Counted, Txn, View, ViewError, Writes, transact},
};

const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("steadfast-meta-1");
const FILE: &str = "meta.redb";
const FILE_IN_THE_MAKING: &str = "meta.redb.new";
const LOCK: &str = "lock";

/// What takes longer has met a disk that hangs. Picked by eye: as long as storage servers wait for an answer; a commit on a busy disk
/// takes tens of milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// An open database.
pub struct Store {
    path: PathBuf,
    cache_bytes: usize,
    cluster: ClusterId,
    /// Readers hold the lock while they read.
    database: RwLock<State>,
    /// Released when the process ends, however it ends.
    lock: File,
    census: Census,
    counts: AtomicU64,
    /// Held by whoever counts, or waits for the disk to.
    counting: Mutex<()>,
    changes: UnderWay,
    reads: UnderWay,
    /// Grows with what is registered.
    registrations: AtomicU64,
    /// Why the last write that changed something failed, until one succeeds.
    failing: Mutex<Option<String>>,
    /// Keys of damaged records that the log has.
    damaged: Mutex<BTreeSet<Vec<u8>>>,
}

/// The most damaged records that are told in the log: whoever reads it knows enough by then.
const DAMAGED_TOLD_MAX: usize = 1000;

/// Whether the database can be asked.
///
/// ```text
///   Open ──I/O error──▶ Failed ──next write──▶ Open
///     └──close──▶ Closed ◀──close──┘
/// ```
enum State {
    Open(Database),
    /// It could not be opened again so far.
    Failed,
    Closed,
}

impl State {
    fn database(&self) -> Result<&Database, ViewError> {
        match self {
            State::Open(database) => Ok(database),
            State::Failed => {
                Err(ViewError::Failed("it could not be opened again after a failure".to_owned()))
            }
            State::Closed => Err(ViewError::Failed("it is closed: the server is stopping".to_owned())),
        }
    }
}

impl Store {
    /// Opens the store in `dir`; makes both where they are absent.
    ///
    /// # Errors
    /// When another server runs on it, when the file is not ours or damaged, or when the system refuses.
    pub fn open(dir: &Path, cache_bytes: usize) -> Result<Self, MetaError> {
        fs::create_dir_all(dir).map_err(io_error("make directory", dir))?;
        let lock = lock(dir)?;
        let path = dir.join(FILE);
        if !path.try_exists().map_err(io_error("look for", &path))? {
            make(dir, cache_bytes)?;
        }
        let (database, cluster) = open_existing(&path, cache_bytes)?;
        Ok(Self {
            path,
            cache_bytes,
            cluster,
            database: RwLock::new(State::Open(database)),
            lock,
            census: Census::default(),
            counts: AtomicU64::new(0),
            counting: Mutex::default(),
            changes: UnderWay::default(),
            reads: UnderWay::default(),
            registrations: AtomicU64::new(0),
            failing: Mutex::new(None),
            damaged: Mutex::default(),
        })
    }

    /// Goes on with names that nothing had since this copy of the store was made.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(crate) fn skip_ahead(&self) -> Result<(), MetaError> {
        let skipped = self.write(|batch| batch.transact(meta::skip_ahead)).and_then(|skipped| skipped);
        let failed =
            |error: ViewError| MetaError::Damaged { path: self.path.clone(), detail: error.to_string() };
        skipped.map_err(failed)?;
        tracing::warn!(path = %self.path.display(), "put back from a copy: what was stored since that was made is given up");
        Ok(())
    }

    /// The cluster that the store belongs to.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Runs `body` on a snapshot of the last durable state.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn read<R>(&self, body: impl FnOnce(&dyn View) -> R) -> Result<R, ViewError> {
        let _under_way = self.reads.begin();
        let guard = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = guard.database()?;
        contain(|| {
            let snapshot = database.begin_read().map_err(failed)?;
            let view = TableView::new(snapshot.open_table(RECORDS).map_err(failed)?);
            let result = body(&view);
            self.tell_damaged(view.left_out.take());
            Ok(result)
        })
    }

    /// Each damaged record once, however often it is met.
    fn tell_damaged(&self, left_out: Vec<(Vec<u8>, ViewError)>) {
        for (key, error) in left_out {
            let mut told = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() < DAMAGED_TOLD_MAX && told.insert(key.clone()) {
                let key = format!("{key:02x?}");
                tracing::error!(%key, %error, "a damaged record was left out: the server goes on without it");
            }
        }
    }

    /// Runs `body` on a batch and makes everything it applied durable, all or nothing. Gives the body's result once
    /// that is so.
    ///
    /// # Errors
    /// When the database failed: whether the batch is durable is then unknown until it is open again, which this
    /// tries before it returns.
    pub fn write<R>(&self, body: impl FnOnce(&mut Batch<'_>) -> R) -> Result<R, ViewError> {
        let _under_way = self.changes.begin();
        match self.try_write(body) {
            Ok((result, written)) => {
                if written && self.failing().take().is_some() {
                    tracing::info!(path = %self.path.display(), "the metadata store takes changes again");
                }
                Ok(result)
            }
            Err(error) => {
                // Every change fails while a disk does: only the first is worth a line.
                if self.failing().replace(error.to_string()).is_none() {
                    tracing::error!(path = %self.path.display(), %error, "the metadata store takes no changes");
                }
                self.census.lost();
                self.reopen();
                self.registered_anew();
                Err(error)
            }
        }
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_write<R>(&self, body: impl FnOnce(&mut Batch<'_>) -> R) -> Result<(R, bool), ViewError> {
        let guard = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = guard.database()?;
        contain(|| {
            let mut commit = database.begin_write().map_err(failed)?;
            commit.set_quick_repair(true);
            let (result, written, registers, deltas) = {
                let table = TableView::new(commit.open_table(RECORDS).map_err(failed)?);
                let mut batch = Batch { table, written: false, registers: false, deltas: Deltas::new() };
                let result = body(&mut batch);
                self.tell_damaged(batch.table.left_out.take());
                if let Some(error) = batch.table.error.take() {
                    return Err(error);
                }
                (result, batch.written, batch.registers, batch.deltas)
            };
            if written {
                let committing = self.census.committing();
                commit.commit().map_err(failed)?;
                committing.committed(&deltas);
                if registers {
                    self.registered_anew();
                }
            } else {
                commit.abort().map_err(failed)?;
            }
            Ok((result, written))
        })
    }

    /// A number that grows when what is registered has changed, or may have, before anybody is told: what was read from a snapshot taken
    /// after it was had is out of date once it is another.
    pub(crate) fn registrations(&self) -> u64 {
        self.registrations.load(Ordering::Acquire)
    }

    fn registered_anew(&self) {
        self.registrations.fetch_add(1, Ordering::AcqRel);
    }

    /// How many records of each counted kind there are, where that is known; never waits for the disk.
    pub(crate) fn census(&self) -> &Census {
        &self.census
    }

    /// Counts the records unless that is done or under way, were it by one who still waits for the disk. Waits for the disk.
    pub(crate) fn count(&self) {
        let _counting = match self.counting.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        let count = self.counts.fetch_add(1, Ordering::Relaxed);
        let counting = || {
            let guard = self.database.read().unwrap_or_else(PoisonError::into_inner);
            let database = guard.database()?;
            contain(|| {
                let committing = self.census.committing();
                if !committing.begin(count) {
                    return Ok(None);
                }
                let snapshot = database.begin_read().map_err(failed)?;
                drop(committing);
                let table = snapshot.open_table(RECORDS).map_err(failed)?;
                let mut found = Deltas::new();
                for kind in Counted::ALL {
                    let (from, to) = kind.keys();
                    let entries = table.range(&from[..]..&to[..]).map_err(failed)?;
                    let mut number = 0;
                    for entry in entries {
                        entry.map_err(failed)?;
                        number += 1;
                    }
                    found.insert(kind, number);
                }
                Ok(Some(found))
            })
        };
        match counting() {
            Ok(Some(found)) => self.census.counted(count, found),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the records could not be counted");
                self.census.lost();
            }
        }
    }

    /// Whether the database is open, the last change succeeded and nothing has been under way for long, and why not. Never waits for
    /// the disk.
    ///
    /// # Errors
    /// As a request would give.
    pub(crate) fn check(&self) -> Result<(), ViewError> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), ViewError> {
        if let Some(why) = self.failing().clone() {
            return Err(ViewError::Failed(why));
        }
        for (what, longest) in [("change", self.changes.longest(now)), ("read", self.reads.longest(now))] {
            if longest >= HANGS_AFTER {
                let seconds = longest.as_secs();
                return Err(ViewError::Failed(format!(
                    "a {what} has been under way for {seconds} s: the disk does not answer"
                )));
            }
        }
        // A writer waits for this lock only while the database is opened again.
        match self.database.try_read() {
            Ok(guard) => guard.database().map(drop),
            Err(std::sync::TryLockError::WouldBlock) => {
                Err(ViewError::Failed("it is being opened again".to_owned()))
            }
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner().database().map(drop),
        }
    }

    /// Bytes of the database file; 0 where the system does not say.
    pub(crate) fn file_bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Closes the database once nobody reads and lets another server have the directory.
    pub fn close(&self) {
        let mut guard = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*guard, State::Closed) {
            *guard = State::Closed;
            self.registered_anew();
            if let Err(error) = self.lock.unlock() {
                tracing::warn!(%error, "the directory is released only when the process ends");
            }
        }
    }

    /// Closes the database after a failure and opens it again at its last durable commit.
    fn reopen(&self) {
        let mut guard = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*guard, State::Closed) {
            return;
        }
        // Closed first: redb locks the file. Closing writes, and so may meet what the failure was about.
        let failed = std::mem::replace(&mut *guard, State::Failed);
        let close = || {
            drop(failed);
            Ok(())
        };
        if contain(close).is_err() {
            tracing::debug!(path = %self.path.display(), "the failed store did not close cleanly");
        }
        match open_existing(&self.path, self.cache_bytes) {
            Ok((database, cluster)) if cluster == self.cluster => *guard = State::Open(database),
            Ok((_, found)) => {
                let swapped = format!("the store at its place is of cluster {found}");
                self.failing().replace(swapped);
            }
            Err(error) => {
                tracing::debug!(%error, "the metadata store could not be opened again");
                self.failing().replace(error.to_string());
            }
        }
    }
}

/// Changes that become durable together.
pub struct Batch<'t> {
    table: TableView<redb::Table<'t, &'static [u8], &'static [u8]>>,
    written: bool,
    /// Whether any of it is of what is registered.
    registers: bool,
    /// How many counted records came and went.
    deltas: Deltas,
}

impl Batch<'_> {
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
struct TableView<T> {
    table: T,
    error: Cell<Option<ViewError>>,
    /// Damaged records that a core went on without.
    left_out: Cell<Vec<(Vec<u8>, ViewError)>>,
}

impl<T> TableView<T> {
    fn new(table: T) -> Self {
        Self { table, error: Cell::new(None), left_out: Cell::default() }
    }

    fn note(&self, error: ViewError) -> ViewError {
        let first = self.error.take().unwrap_or_else(|| error.clone());
        self.error.set(Some(first));
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

/// Runs `body`; redb panics on pages that no redb wrote, which is the disk's fault and must end no server.
fn contain<R>(body: impl FnOnce() -> Result<R, ViewError>) -> Result<R, ViewError> {
    // What a panic leaves behind is the transaction, which is given up: its database is opened again or only read.
    panic::catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(ViewError::Failed("the database met a page that it cannot read".to_owned())))
}

fn failed(error: impl Into<redb::Error>) -> ViewError {
    ViewError::Failed(error.into().to_string())
}

fn lock(dir: &Path) -> Result<File, MetaError> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(MetaError::InUse { path: dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(MetaError::Io { what: "lock", path, source }),
    }
}

/// Makes an empty store with a cluster of its own.
fn make(dir: &Path, cache_bytes: usize) -> Result<(), MetaError> {
    let (making, path) = (dir.join(FILE_IN_THE_MAKING), dir.join(FILE));
    match fs::remove_file(&making) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(MetaError::Io { what: "remove", path: making, source });
        }
        _ => {}
    }
    let cluster = draw_cluster()?;
    let fill = || -> Result<(), redb::Error> {
        let database = Builder::new().set_cache_size(cache_bytes).create(&making)?;
        let mut commit = database.begin_write()?;
        commit.set_quick_repair(true);
        {
            let mut table = commit.open_table(RECORDS)?;
            let empty = meta::MemoryStore::new();
            let (established, writes) = transact(&empty, |txn| meta::establish(txn, cluster));
            debug_assert_eq!(established, Ok(cluster));
            for (key, value) in writes {
                table.insert(key.as_slice(), value.unwrap_or_default().as_slice())?;
            }
        }
        commit.commit()?;
        Ok(())
    };
    fill().map_err(|error| MetaError::Io {
        what: "make",
        path: making.clone(),
        source: io::Error::other(error),
    })?;
    fs::rename(&making, &path).map_err(io_error("rename", &making))?;
    // The new name is durable before anything is answered from it.
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("flush directory", dir))
}

fn open_existing(path: &Path, cache_bytes: usize) -> Result<(Database, ClusterId), MetaError> {
    let foreign = |detail: String| MetaError::Foreign { path: path.to_owned(), detail };
    let damaged = |detail: String| MetaError::Damaged { path: path.to_owned(), detail };
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).map_err(|source| {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => foreign("it is empty".to_owned()),
            _ => MetaError::Io { what: "read", path: path.to_owned(), source },
        }
    })?;
    if magic != *b"redb" {
        return Err(foreign(format!("it begins with {magic:02x?}")));
    }
    let unreadable = |_| damaged("a page that no database wrote".to_owned());
    let opened = panic::catch_unwind(|| Builder::new().set_cache_size(cache_bytes).open(path));
    let database = opened.map_err(unreadable)?.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => MetaError::InUse { path: path.to_owned() },
        DatabaseError::Storage(StorageError::Io(source)) if source.kind() != io::ErrorKind::InvalidData => {
            MetaError::Io { what: "open", path: path.to_owned(), source }
        }
        DatabaseError::UpgradeRequired(version) => foreign(format!("database file format {version}")),
        other => damaged(other.to_string()),
    })?;
    let read = || -> Result<Result<Option<ClusterId>, ViewError>, TableError> {
        let snapshot = database.begin_read().map_err(|error| match error {
            redb::TransactionError::Storage(storage) => TableError::Storage(storage),
            other => TableError::Storage(StorageError::Corrupted(other.to_string())),
        })?;
        Ok(meta::cluster(&TableView::new(snapshot.open_table(RECORDS)?)))
    };
    let cluster = match panic::catch_unwind(AssertUnwindSafe(read)).map_err(unreadable)? {
        Ok(Ok(Some(cluster))) => cluster,
        Ok(Ok(None)) => return Err(foreign("it names no cluster".to_owned())),
        Ok(Err(error @ ViewError::Format { .. })) => {
            return Err(MetaError::OtherFormat { path: path.to_owned(), detail: error.to_string() });
        }
        Ok(Err(error)) => return Err(damaged(error.to_string())),
        Err(TableError::TableDoesNotExist(_)) => {
            return Err(foreign(format!("it has no table `{}`", RECORDS.name())));
        }
        Err(error) => return Err(damaged(error.to_string())),
    };
    Ok((database, cluster))
}

fn draw_cluster() -> Result<ClusterId, MetaError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).map_err(io_error("read", source))?;
    Ok(ClusterId(u128::from_ne_bytes(bytes)))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MetaError {
    let path = path.to_owned();
    move |source| MetaError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    /// Each question to the admin port asks for a count where none is known.
    #[test]
    fn one_at_a_time_waits_for_the_disk_to_count_the_records() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path(), 1 << 20).expect("an empty directory");
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            // A commit that hangs.
            let (store, committing) = (&store, store.census.committing());
            for _ in 0..3 {
                let done = done.clone();
                scope.spawn(move || {
                    store.count();
                    done.send(()).expect("somebody waits");
                });
            }
            for _ in 0..2 {
                is_done.recv_timeout(Duration::from_secs(60)).expect("nobody waits behind another");
            }
            assert!(is_done.try_recv().is_err() && store.census.known().is_none());
            drop(committing);
        });
        assert!(store.census.known().is_some());
    }

    #[test]
    fn a_store_whose_disk_hangs_is_not_well_until_it_answers() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path(), 1 << 20).expect("an empty directory");
        type Work = fn(&Store, &dyn Fn());
        let works: [Work; 2] = [
            |store, hang| store.write(|_| hang()).expect("nothing is wrong with it"),
            |store, hang| store.read(|_| hang()).expect("nothing is wrong with it"),
        ];
        for work in works {
            let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
            let before = Instant::now();
            let (at_first, later) = thread::scope(|scope| {
                let store = &store;
                scope.spawn(move || {
                    work(store, &|| {
                        begun.send(()).expect("somebody waits");
                        // Whoever was to let it go on has failed, then.
                        let _ = go_on.recv();
                    });
                });
                has_begun.recv().expect("it begins");
                let said = (store.check_at(before), store.check_at(Instant::now() + HANGS_AFTER));
                let_go.send(()).expect("it hangs");
                said
            });
            assert_eq!(at_first, Ok(()));
            assert!(
                matches!(&later, Err(ViewError::Failed(why)) if why.contains("does not answer")),
                "{later:?}"
            );
            assert_eq!(store.check_at(Instant::now() + HANGS_AFTER), Ok(()), "it is over");
        }
    }
}
