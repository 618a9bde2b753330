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
//! redb takes no further request after an I/O error, were it the read of one sector that nobody else wants. The database is then closed
//! and opened again, by whoever asks it next: reads go on from the last durable commit while the disk takes no writes, and past what
//! cannot be read. A read that found it useless through no fault of its own is made again.

pub use crate::batch::Batch;
use crate::{
    MetaError,
    batch::{Failure, RECORDS, TableView, Why, contain, failed},
    census::{Census, Deltas},
    file::{FILE, io_error, lock, make, open_existing},
    under_way::UnderWay,
};
use redb::{Database, ReadableDatabase};
use std::{
    cell::Cell,
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use steadfast_protocol::{
    ClusterId,
    meta::{self, Counted, View, ViewError},
};

/// What takes longer has met a disk that hangs. Picked by eye: as long as storage servers wait for an answer; a commit on a busy disk
/// takes tens of milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// How often a read is made at most, while others' failures leave the database useless under it. Picked by eye: they would have to fail as
/// often in the time of one.
const READ_TRIES_MAX: usize = 4;

/// How long nobody counts again after the disk could not read what is counted: each question to the admin port would look through all that
/// lies before that.
const RECOUNTED_AFTER: Duration = Duration::from_secs(300);

/// A count looks so often whether somebody waits for it, in records: well below a millisecond's worth.
const GIVES_WAY_EVERY: usize = 1024;

/// From one line in the log about what cannot be read to the next: who asks for that asks again.
const UNREAD_TOLD_EVERY: Duration = Duration::from_secs(60);

/// An open database.
pub struct Store {
    path: PathBuf,
    cache_bytes: usize,
    cluster: ClusterId,
    /// Readers hold the lock while they read.
    database: RwLock<State>,
    /// Whether something failed since the database was opened, and it takes no request more. Set by who holds the lock as a reader.
    useless: AtomicBool,
    /// How many wait for the lock to have the database to themselves, and every reader behind them.
    waiting: AtomicUsize,
    /// Released when the process ends, however it ends.
    lock: File,
    census: Census,
    counts: AtomicU64,
    /// Held by whoever counts, or waits for the disk to; when the disk last could not.
    counting: Mutex<Option<Instant>>,
    changes: UnderWay,
    reads: UnderWay,
    /// Grows with what is registered.
    registrations: AtomicU64,
    /// Why the last write that changed something failed, until one succeeds.
    failing: Mutex<Option<String>>,
    /// Keys of damaged records that the log has.
    damaged: Mutex<BTreeSet<Vec<u8>>>,
    /// When the log was told last of what cannot be read.
    unread_told: Mutex<Option<Instant>>,
}

/// The most damaged records that are told in the log: whoever reads it knows enough by then.
const DAMAGED_TOLD_MAX: usize = 1000;

/// Whether the database can be asked.
///
/// ```text
///   Open ──I/O error──▶ useless ──next read or write──▶ Open
///    │                     │ it does not open            ▲
///    │                     └──────────▶ Failed ──next write
///    └──close──▶ Closed ◀──close──────────┘
/// ```
enum State {
    Open(Database),
    /// It could not be opened again so far, and why. Writes try that, of which there is one a second: reads would queue behind each other's
    /// attempts.
    Failed(String),
    Closed,
}

impl State {
    fn database(&self) -> Result<&Database, ViewError> {
        match self {
            State::Open(database) => Ok(database),
            State::Failed(why) => {
                Err(ViewError::Failed(format!("it could not be opened again after a failure: {why}")))
            }
            State::Closed => Err(ViewError::Failed("it is closed: the server is stopping".to_owned())),
        }
    }
}

/// Why a batch came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// It needs what cannot be read, or what it read was useless through another's failure. Nothing of it is stored: another may succeed.
    #[error("{0}")]
    Unread(ViewError),
    /// The database takes no changes. Whether this one is durable is unknown until it is open again.
    #[error("{0}")]
    Unwritten(ViewError),
}

impl From<WriteError> for ViewError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Unread(error) | WriteError::Unwritten(error) => error,
        }
    }
}

/// How far a batch has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begins,
    /// Its body runs.
    Runs,
    Commits,
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
            useless: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            lock,
            census: Census::default(),
            counts: AtomicU64::new(0),
            counting: Mutex::default(),
            changes: UnderWay::default(),
            reads: UnderWay::default(),
            registrations: AtomicU64::new(0),
            failing: Mutex::new(None),
            damaged: Mutex::default(),
            unread_told: Mutex::default(),
        })
    }

    /// Goes on with names that nothing had since this copy of the store was made.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(crate) fn skip_ahead(&self) -> Result<(), MetaError> {
        let skipped = self.write(|batch| batch.transact(meta::skip_ahead));
        let skipped = skipped.map_err(ViewError::from).and_then(|skipped| skipped);
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

    /// Runs `body` on a snapshot of the last durable state; once more where others' failures left it none.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn read<R>(&self, body: impl Fn(&dyn View) -> R) -> Result<R, ViewError> {
        let _under_way = self.reads.begin();
        let mut read = self.try_read(&body);
        for _ in 1..READ_TRIES_MAX {
            match &read {
                Err(failure) if failure.why == Why::Earlier => read = self.try_read(&body),
                _ => break,
            }
        }
        read.map_err(|failure| failure.error)
    }

    fn try_read<R>(&self, body: &impl Fn(&dyn View) -> R) -> Result<R, Failure> {
        if self.is_useless() {
            self.reopen();
        }
        let guard = self.shared();
        let database = guard.database()?;
        let read = contain(|| {
            let snapshot = database.begin_read().map_err(failed)?;
            let view = TableView::new(snapshot.open_table(RECORDS).map_err(failed)?);
            let result = body(&view);
            self.tell_damaged(view.left_out.take());
            Ok((result, view.error.take()))
        });
        let failure = match &read {
            Ok((_, failure)) => failure.as_ref(),
            Err(failure) => Some(failure),
        };
        if let Some(failure) = failure {
            self.failed_to_read(failure);
        }
        match read? {
            (_, Some(failure)) if failure.why == Why::Earlier => Err(failure),
            // The result says what could not be read.
            (result, _) => Ok(result),
        }
    }

    /// What is to be done before the lock is let go: whoever has it next finds the database useless.
    fn failed_to_read(&self, failure: &Failure) {
        self.useless.store(true, Ordering::Release);
        if failure.why == Why::Earlier {
            return;
        }
        let mut told = self.unread_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= UNREAD_TOLD_EVERY) {
            *told = Some(Instant::now());
            let (path, error) = (self.path.display(), &failure.error);
            tracing::error!(%path, %error, "the metadata store could not read some of its file: it is opened again, and goes on without that");
        }
    }

    /// Whether the database takes no request more until it is opened again.
    fn is_useless(&self) -> bool {
        self.useless.load(Ordering::Acquire)
    }

    fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database to oneself: waits for all who read. Who counts gives way.
    fn alone(&self) -> RwLockWriteGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let guard = self.database.write().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        guard
    }

    /// Whether somebody waits to have the database to himself.
    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
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
    /// When the database failed: it is opened again, or that is tried, before this returns.
    pub fn write<R>(&self, body: impl FnOnce(&mut Batch<'_>) -> R) -> Result<R, WriteError> {
        let _under_way = self.changes.begin();
        match self.try_write(body) {
            Ok((result, written)) => {
                if written && self.failing().take().is_some() {
                    tracing::info!(path = %self.path.display(), "the metadata store takes changes again");
                }
                Ok(result)
            }
            Err(error) => {
                if let WriteError::Unwritten(error) = &error {
                    // Every change fails while a disk does: only the first is worth a line.
                    if self.failing().replace(error.to_string()).is_none() {
                        tracing::error!(path = %self.path.display(), %error, "the metadata store takes no changes");
                    }
                    self.census.lost();
                }
                self.reopen();
                Err(error)
            }
        }
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_write<R>(&self, body: impl FnOnce(&mut Batch<'_>) -> R) -> Result<(R, bool), WriteError> {
        let mut guard = self.shared();
        if self.is_useless() || matches!(*guard, State::Failed(_)) {
            drop(guard);
            self.reopen();
            guard = self.shared();
        }
        let database = guard.database().map_err(WriteError::Unwritten)?;
        let stage = Cell::new(Stage::Begins);
        let outcome = contain(|| {
            let mut commit = database.begin_write().map_err(failed)?;
            commit.set_quick_repair(true);
            let (result, written, registers, deltas) = {
                let mut batch = Batch::new(commit.open_table(RECORDS).map_err(failed)?);
                stage.set(Stage::Runs);
                // By itself: a transaction that a panic ends has the whole file walked through when it is opened next, and what cannot be
                // read of it makes that fail for good.
                let result = contain(|| Ok(body(&mut batch)))?;
                self.tell_damaged(batch.table.left_out.take());
                if let Some(failure) = batch.table.error.take() {
                    return Err(failure);
                }
                (result, batch.written, batch.registers, batch.deltas)
            };
            stage.set(Stage::Commits);
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
        });
        outcome.map_err(|failure| match (stage.get(), failure.why) {
            // Nothing is stored. A disk without room, however, is not met by one change and not by another.
            (Stage::Begins, Why::Earlier) | (Stage::Runs, Why::Earlier | Why::Itself) => {
                self.failed_to_read(&failure);
                WriteError::Unread(failure.error)
            }
            _ => {
                self.useless.store(true, Ordering::Release);
                WriteError::Unwritten(failure.error)
            }
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

    /// Counts the records unless that is done or under way, were it by one who still waits for the disk; or the disk could not a while ago.
    /// Waits for the disk, and gives up where somebody waits for the database.
    pub(crate) fn count(&self) {
        let mut unread = match self.counting.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        // Behind who waits for the database nobody could be told to give way.
        if unread.is_some_and(|unread| unread.elapsed() < RECOUNTED_AFTER) || self.is_wanted() {
            return;
        }
        let count = self.counts.fetch_add(1, Ordering::Relaxed);
        match self.try_count(count) {
            Ok(Some(found)) => self.census.counted(count, found),
            Ok(None) => {}
            Err(failure) => {
                tracing::warn!(error = %failure.error, "the records could not be counted");
                self.census.lost();
                if failure.why != Why::Earlier {
                    *unread = Some(Instant::now());
                }
            }
        }
    }

    /// None where they are counted, or it was given up, or there is no database to ask.
    fn try_count(&self, count: u64) -> Result<Option<Deltas>, Failure> {
        let guard = self.shared();
        let Ok(database) = guard.database() else { return Ok(None) };
        let counted = contain(|| {
            let committing = self.census.committing();
            if !committing.begin(count) {
                return Ok(None);
            }
            let snapshot = database.begin_read().map_err(failed)?;
            drop(committing);
            let table = snapshot.open_table(RECORDS).map_err(failed)?;
            let (mut found, mut looked_at) = (Deltas::new(), 0);
            for kind in Counted::ALL {
                let (from, to) = kind.keys();
                let mut number = 0;
                for entry in table.range(&from[..]..&to[..]).map_err(failed)? {
                    entry.map_err(failed)?;
                    number += 1;
                    looked_at += 1;
                    if looked_at % GIVES_WAY_EVERY == 0 && self.is_wanted() {
                        self.census.lost();
                        return Ok(None);
                    }
                }
                found.insert(kind, number);
            }
            Ok(Some(found))
        });
        if counted.is_err() {
            self.useless.store(true, Ordering::Release);
        }
        counted
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
        let mut guard = self.alone();
        if !matches!(*guard, State::Closed) {
            *guard = State::Closed;
            self.registered_anew();
            if let Err(error) = self.lock.unlock() {
                tracing::warn!(%error, "the directory is released only when the process ends");
            }
        }
    }

    /// Closes the database after a failure and opens it again at its last durable commit, unless somebody has done so meanwhile.
    fn reopen(&self) {
        let mut guard = self.alone();
        let useless = self.useless.swap(false, Ordering::AcqRel);
        if matches!(*guard, State::Closed) || !(useless || matches!(*guard, State::Failed(_))) {
            return;
        }
        // Closed first: redb locks the file. Closing writes, and so may meet what the failure was about.
        let failed = std::mem::replace(&mut *guard, State::Failed("it is still being closed".to_owned()));
        let close = || {
            drop(failed);
            Ok(())
        };
        if contain(close).is_err() {
            tracing::debug!(path = %self.path.display(), "the failed store did not close cleanly");
        }
        *guard = match open_existing(&self.path, self.cache_bytes) {
            Ok((database, cluster)) if cluster == self.cluster => State::Open(database),
            Ok((_, found)) => State::Failed(format!("the store at its place is of cluster {found}")),
            Err(error) => {
                tracing::debug!(%error, "the metadata store could not be opened again");
                State::Failed(error.to_string())
            }
        };
        // A commit that failed may be durable all the same.
        self.registered_anew();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::FileExt, sync::mpsc, thread};
    use steadfast_protocol::meta::Txn;

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

    /// So many records of objects, of 4 KB each.
    fn filled(dir: &Path, records: u32) -> Store {
        let store = Store::open(dir, 1 << 20).expect("an empty directory");
        let filled = store.write(|batch| {
            batch.transact(|txn| (0..records).for_each(|number| txn.put(key(number), vec![7; 4000])));
        });
        filled.expect("nothing is wrong with it");
        store.close();
        drop(store);
        // With no room for what was read.
        Store::open(dir, 0).expect("it is whole")
    }

    fn key(number: u32) -> Vec<u8> {
        [&[0x20], &number.to_be_bytes()[..]].concat()
    }

    /// Has the store's file end early meanwhile.
    fn cut_short<R>(dir: &Path, body: impl FnOnce() -> R) -> R {
        let file = File::options().read(true).write(true).open(dir.join(FILE)).expect("it is there");
        let bytes = file.metadata().expect("it has a length").len();
        let mut rest = vec![0; (bytes - bytes / 8) as usize];
        file.read_exact_at(&mut rest, bytes / 8).expect("it is read");
        file.set_len(bytes / 8).expect("it is cut");
        let result = body();
        file.set_len(bytes).expect("it is as long as before");
        file.write_all_at(&rest, bytes / 8).expect("it is as before");
        result
    }

    fn get_all(store: &Store, records: u32) -> Result<usize, ViewError> {
        let get = |number| store.read(|view| view.get(&key(number))).and_then(|read| read);
        (0..records)
            .map(get)
            .try_fold(0, |count, read| read.map(|value| count + usize::from(value.is_some())))
    }

    /// redb refuses it what it asks for, for another's sake.
    #[test]
    fn a_read_under_which_another_failed_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = filled(dir.path(), 2000);
        let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let again = Cell::new(0);
        thread::scope(|scope| {
            let (store, dir) = (&store, dir.path());
            let failing = scope.spawn(move || {
                has_begun.recv_timeout(Duration::from_secs(60)).expect("it begins");
                let failed = cut_short(dir, || get_all(store, 2000));
                let_go.send(()).expect("it waits");
                failed
            });
            let read = store.read(|view| {
                again.set(again.get() + 1);
                if again.get() == 1 {
                    begun.send(()).expect("somebody waits");
                    // Whoever was to let it go on has failed, then.
                    let _ = go_on.recv();
                }
                view.get(&key(1999)).map(|value| value.is_some())
            });
            assert!(failing.join().expect("no panic").is_err());
            assert_eq!((read, again.get()), (Ok(Ok(true)), 2));
        });
        assert_eq!(get_all(&store, 2000), Ok(2000));
    }

    #[test]
    fn a_batch_that_met_what_cannot_be_read_stores_nothing_and_stops_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = filled(dir.path(), 2000);
        store.count();
        let known = store.census.known();
        assert!(known.is_some());
        let remove = |txn: &mut Txn<'_>, number| {
            // As the cores do, which look before they change.
            let _of_no_account_here = txn.get(&key(number));
            txn.delete(key(number));
        };
        let all = |txn: &mut Txn<'_>| (0..2000).for_each(|number| remove(txn, number));
        let failed = store.write(|batch| cut_short(dir.path(), || batch.transact(all)));
        assert!(matches!(failed, Err(WriteError::Unread(_))), "{failed:?}");
        // It takes changes, as far as is known, and what is counted stays so.
        assert_eq!((store.check(), store.census.known()), (Ok(()), known));
        assert_eq!(get_all(&store, 2000), Ok(2000));
        let removed = store.write(|batch| batch.transact(|txn| remove(txn, 1999)));
        assert_eq!((removed, get_all(&store, 2000)), (Ok(()), Ok(1999)));
        assert_eq!(store.census.known().expect("it is kept")[&Counted::Object], 1999);
    }

    #[test]
    fn what_the_disk_cannot_read_is_not_counted_again_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = filled(dir.path(), 2000);
        cut_short(dir.path(), || store.count());
        assert!(store.census.is_unknown());
        assert_eq!(get_all(&store, 2000), Ok(2000), "it is open again");
        store.count();
        assert!(store.census.is_unknown(), "not for minutes");
        *store.counting.lock().expect("no panic") = None;
        store.count();
        assert_eq!(store.census.known().expect("it is counted")[&Counted::Object], 2000);
    }

    /// All readers queue behind who wants to open it again, and he behind a count.
    #[test]
    fn a_count_gives_way_to_who_wants_the_database() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = filled(dir.path(), 3 * GIVES_WAY_EVERY as u32);
        let ((begun, has_begun), (let_go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|scope| {
            let store = &store;
            scope.spawn(move || {
                store.read(|_| {
                    begun.send(()).expect("somebody waits");
                    let _ = go_on.recv();
                })
            });
            has_begun.recv_timeout(Duration::from_secs(60)).expect("it reads");
            let reopening = scope.spawn(|| {
                store.useless.store(true, Ordering::Release);
                store.reopen();
            });
            while !store.is_wanted() {
                thread::yield_now();
            }
            // Not even begun: it would wait for who waits.
            store.count();
            assert!(store.census.is_unknown() && !reopening.is_finished());
            let_go.send(()).expect("it waits");
        });
        assert!(!store.is_wanted() && !store.is_useless());
        // One that has begun ends early.
        store.waiting.fetch_add(1, Ordering::AcqRel);
        assert_eq!(store.try_count(8).expect("nothing is wrong with it"), None);
        assert!(store.census.is_unknown());
        store.waiting.fetch_sub(1, Ordering::AcqRel);
        // And many of them, one after the other, keep nobody from opening it again and again.
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    store.census.lost();
                    store.count();
                }
            });
            for _ in 0..20 {
                store.useless.store(true, Ordering::Release);
                store.reopen();
            }
            stop.store(true, Ordering::Release);
        });
        store.census.lost();
        store.count();
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
