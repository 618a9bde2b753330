//! One client as a process of its own: waits for a line, makes its accesses, says what each took.

use super::parts::process_seconds;
use crate::original::Original;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
};
use steadfast_client::{Client, Ingest, Options};

/// What the process says when its source is made and it waits for a line.
const READY: &str = "ready";

/// What one client does.
#[derive(Clone, Debug)]
pub struct Access {
    /// Address of the metadata server.
    pub cluster: String,
    /// Whether it writes; else it reads.
    pub put: bool,
    /// Who encodes what it writes.
    pub ingest: Ingest,
    /// The object's bucket.
    pub bucket: String,
    /// The object's key.
    pub key: String,
    /// Its length, of a put.
    pub bytes: u64,
    /// Accesses, one after the other.
    pub count: u32,
    /// What its bytes are made from, of a put.
    pub seed: u64,
}

/// What one access took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// When it began, on the machine's monotonic clock, which all processes share: before the client connected, of the first access.
    pub begun_ns: u64,
    /// When the last byte was durable or summed.
    pub ended_ns: u64,
    /// From the one to the other.
    pub seconds: f64,
    /// Processor seconds of this process for it.
    pub cpu_s: f64,
    /// Bytes of the object.
    pub bytes: u64,
    /// CRC-32C of what was read; of a put, none.
    pub sum: Option<u32>,
    /// Bytes sent beyond the object, as a share of it.
    pub io_overhead: f64,
}

impl Access {
    /// Runs it in this process: the far end of [`Started`].
    ///
    /// # Errors
    /// When an access fails.
    pub async fn run(&self) -> Result<()> {
        let original = self.put.then(|| {
            Original::make(usize::try_from(self.bytes).expect("made for machines of 64 bits"), self.seed)
        });
        writeln!(io::stdout(), "{READY}")?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            bail!("whoever started this client is gone");
        }
        let mut client = None;
        for _ in 0..self.count {
            let (begun_ns, cpu) = (monotonic_ns(), process_seconds());
            let client = match &mut client {
                Some(client) => client,
                none => {
                    let options = Options { ingest: self.ingest, ..Options::default() };
                    none.insert(Client::connect(&self.cluster, options).await?)
                }
            };
            let (bytes, sum, io_overhead) = match &original {
                Some(original) => {
                    let source = original.source()?;
                    let stored = client.put(&self.bucket, &self.key, source, Some(self.bytes)).await?;
                    (stored.size, None, stored.sent_bytes as f64 / stored.size.max(1) as f64 - 1.0)
                }
                None => {
                    let sum = Sum::default();
                    let got = client.get(&self.bucket, &self.key, None, sum.clone()).await?;
                    (got.size, Some(sum.value()), got.io_overhead())
                }
            };
            let ended_ns = monotonic_ns();
            let (seconds, cpu_s) = (seconds(begun_ns, ended_ns), process_seconds() - cpu);
            let taken = Taken { begun_ns, ended_ns, seconds, cpu_s, bytes, sum, io_overhead };
            writeln!(io::stdout(), "{}", serde_json::to_string(&taken)?)?;
        }
        if let Some(client) = client {
            client.tidy().await;
        }
        Ok(())
    }

    /// Starts a process that does it once it is let go.
    ///
    /// # Errors
    /// When it cannot be started or does not come up.
    pub fn start(&self, program: &Path) -> Result<Started> {
        let mut command = Command::new(program);
        command.args(["bench", "access", "--cluster", &self.cluster]);
        command.args(["--object", &format!("{}/{}", self.bucket, self.key)]);
        command.args(["--count", &self.count.to_string(), "--seed", &self.seed.to_string()]);
        if self.put {
            command.args(["--put", &self.bytes.to_string(), "--ingest", &self.ingest.to_string()]);
        }
        // How it is done is said in full, whatever the file and the environment of whoever runs this say to clients.
        for variable in ["CONFIG", "PATIENCE", "INGEST", "THREADS"] {
            command.env_remove(format!("STEADFAST_{variable}"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let gate = child.stdin.take().expect("piped above");
        let mut said = BufReader::new(child.stdout.take().expect("piped above"));
        let mut line = String::new();
        said.read_line(&mut line)?;
        if line.trim() != READY {
            let _ = child.kill();
            bail!("a client did not come up: {}", child.wait()?);
        }
        Ok(Started { child, gate: Some(gate), said })
    }
}

/// A client's process that waits to be let go; killed when dropped.
pub struct Started {
    child: Child,
    gate: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
}

impl Started {
    /// Lets it go.
    ///
    /// # Errors
    /// When it is gone.
    pub fn go(&mut self) -> Result<()> {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(b"go\n").context("a client ended before it began")?;
        }
        Ok(())
    }

    /// What its accesses took, once it has ended.
    ///
    /// # Errors
    /// When one failed.
    pub fn finish(mut self) -> Result<Vec<Taken>> {
        let mut all = Vec::new();
        for line in self.said.by_ref().lines() {
            all.push(serde_json::from_str(&line?).context("a client says something else")?);
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("a client failed: {status}");
        }
        Ok(all)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Already gone is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sink that only sums.
#[derive(Clone)]
pub(super) struct Sum(Arc<Mutex<crc_fast::Digest>>);

impl Default for Sum {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))))
    }
}

impl Sum {
    pub(super) fn value(&self) -> u32 {
        let sum = self.0.lock().expect("never poisoned: no panic while held").finalize();
        u32::try_from(sum).expect("CRC-32C has 32 bits")
    }
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("never poisoned: no panic while held").update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Seconds from when the first of several accesses began until the last had ended: what all their bytes took. The longest of them took
/// less where they did not begin at once.
pub(super) fn span_s(all: &[Taken]) -> f64 {
    let begun = all.iter().map(|taken| taken.begun_ns).min().unwrap_or(0);
    let ended = all.iter().map(|taken| taken.ended_ns).max().unwrap_or(0);
    seconds(begun, ended)
}

fn seconds(begun_ns: u64, ended_ns: u64) -> f64 {
    ended_ns.saturating_sub(begun_ns) as f64 / 1e9
}

/// The clock of all processes of this machine; what the standard library's `Instant` holds cannot be told to another.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).expect("the clock is ahead of its beginning");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// CRC-32C as [`Taken::sum`] has it.
pub(super) fn sum_of(original: &Original) -> Result<u32> {
    let mut sum = Sum::default();
    io::copy(&mut original.reader()?, &mut sum)?;
    Ok(sum.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_at_once_last_from_the_first_beginning_to_the_last_end() {
        let taken = |begun_ns, ended_ns| {
            let seconds = seconds(begun_ns, ended_ns);
            Taken { begun_ns, ended_ns, seconds, cpu_s: 0.0, bytes: 1, sum: None, io_overhead: 0.0 }
        };
        let all = [taken(2_000_000_000, 3_000_000_000), taken(1_000_000_000, 2_500_000_000)];
        assert_eq!(span_s(&all), 2.0, "none of them took as long");
        assert_eq!(span_s(&[]), 0.0);
    }
}
