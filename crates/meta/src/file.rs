//! The database file in its directory: locked, made, opened.

use crate::{
    MetaError,
    batch::{RECORDS, TableView},
};
use redb::{Builder, Database, DatabaseError, ReadableDatabase, StorageError, TableError, TableHandle};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    panic::{self, AssertUnwindSafe},
    path::Path,
};
use steadfast_protocol::{
    ClusterId,
    meta::{self, ViewError, transact},
};

pub(crate) const FILE: &str = "meta.redb";
const FILE_IN_THE_MAKING: &str = "meta.redb.new";
const LOCK: &str = "lock";

pub(crate) fn lock(dir: &Path) -> Result<File, MetaError> {
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
pub(crate) fn make(dir: &Path, cache_bytes: usize) -> Result<(), MetaError> {
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

pub(crate) fn open_existing(path: &Path, cache_bytes: usize) -> Result<(Database, ClusterId), MetaError> {
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

pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MetaError {
    let path = path.to_owned();
    move |source| MetaError::Io { what, path, source }
}
