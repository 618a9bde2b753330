//! One module for each command, or for a few that belong together.

pub(crate) mod bench;
pub(crate) mod bucket;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod device;
pub(crate) mod documents;
mod doings;
pub(crate) mod file;
mod health;
pub(crate) mod lab;
pub(crate) mod list;
pub(crate) mod objects;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod servers;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod stop;
mod target;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod up;
pub(crate) mod update;

use crate::arguments::{Class, Cluster};
use serde::Serialize;
use steadfast_client::{Client, ClientError, Options, Quality};

/// A client of the cluster that the command line names.
async fn connect(cluster: &Cluster) -> Result<Client, ClientError> {
    connect_with(cluster, cluster.tuning.options()).await
}

/// The same for a command whose reads and writes give way to those of others where it is told so.
async fn connect_as(class: Class, cluster: &Cluster) -> Result<Client, ClientError> {
    let quality = Quality { background: class.background, ..Quality::default() };
    connect_with(cluster, Options { quality, ..cluster.tuning.options() }).await
}

/// The same with options of the command's own.
async fn connect_with(cluster: &Cluster, options: Options) -> Result<Client, ClientError> {
    Client::connect(&cluster.cluster, options).await
}

/// Prints one JSON object as a line.
fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string(value)?)
}

/// A time of the metadata server's clock as `2026-11-20 14:05:09` (UTC).
fn show_time(time: steadfast_protocol::Time) -> String {
    let seconds = time.0 / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01: the year is counted from March, so that leap days come last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::show_time;
    use steadfast_protocol::Time;

    #[test]
    fn times_as_people_read_them() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_183_509, "2026-11-20 14:05:09"),
        ] {
            assert_eq!(show_time(Time(seconds * 1_000_000_000)), text);
        }
    }
}
