//! Figures of a run that may take an hour and end before its time: with `--json` each is printed when its case is complete; for people
//! all complete cases become one table at the run's end, whatever ends it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};
use steadfast_lab::report::Report;

/// What is to be printed of the run that goes on. Known to the whole program: one that is told to stop may have to end where it stands.
static TABLE: Mutex<Option<Table>> = Mutex::new(None);

struct Table {
    complete: Report,
    show: Box<dyn Fn(&Report) -> String + Send>,
}

/// The report of a run from `seed`, whose cases are printed, or kept for the table that `show` makes of them.
pub(crate) fn begin(seed: u64, json: bool, show: impl Fn(&Report) -> String + Send + 'static) -> Report {
    if json {
        return Report::telling(seed, |records| {
            records.iter().try_for_each(|record| say!("{}", record.json()))
        });
    }
    *table() = Some(Table { complete: Report::new(seed), show: Box::new(show) });
    Report::telling(seed, |records| {
        if let Some(table) = &mut *table() {
            table.complete.records.extend_from_slice(records);
        }
        Ok(())
    })
}

/// Prints the table of what is complete, where there is one that was not printed.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print() -> anyhow::Result<()> {
    // Locked until it is written: whoever comes meanwhile to print it and end the program would cut it short.
    match table().take() {
        Some(Table { complete, show }) if !complete.records.is_empty() => say!("{}", show(&complete)),
        _ => Ok(()),
    }
}

/// [`print()`] for a program that ends: not for longer than `limit`, as whoever reads may have stopped reading, the table that another
/// thread is writing included. Nobody is left to be told that it cannot be written.
pub(crate) fn print_within(limit: Duration) {
    let (done, printed) = mpsc::channel();
    thread::spawn(move || {
        let _ = print();
        let _ = done.send(());
    });
    let _ = printed.recv_timeout(limit);
}

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}
