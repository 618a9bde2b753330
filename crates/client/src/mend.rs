//! Degraded segments completed without being asked, once enough failure domains serve again.
//!
//! Every storage server looks, and the one of the lowest name among those that are alive does it: two at once would be no harm, as of
//! two changes of one version one wins, but twice the work.

use crate::{Client, ClientError, Options, RepairError, moves::Work};
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    NodeId,
    drain::{Limits, Totals, mends},
    plan::Quality,
};

/// One object at a time, so that others notice little of it; and the others where one cannot be completed.
const LIMITS: Limits = Limits { objects_max: 1, bytes_max: 64 << 20, keep_going: true };

/// Looks every so often whether anything of the cluster at `cluster` is degraded, and completes it where it is the turn of the storage
/// server `own`; for as long as it is polled.
pub async fn mend(cluster: &str, own: NodeId, every: Duration, options: Options) -> Infallible {
    let quality = Quality { background: true, ..options.quality };
    let options = Options { quality, ..options };
    let mut client = None;
    loop {
        tokio::time::sleep(every).await;
        let known = match client.take() {
            Some(known) => Ok(known),
            None => Client::connect(cluster, options.clone()).await,
        };
        let mended = async {
            let known = known?;
            let mended = look(&known, own).await;
            known.tidy().await;
            client = Some(known);
            mended
        };
        // A metadata server out of reach is told of by whoever has more to do with it.
        if let Err(error) = mended.await {
            tracing::debug!(%error, "degraded segments were not looked for");
        }
    }
}

async fn look(client: &Client, own: NodeId) -> Result<(), ClientError> {
    if !mends(&client.registry().await?, own) || client.degraded().await?.segments == 0 {
        return Ok(());
    }
    let start = Instant::now();
    let totals = client.move_all(&Work::Complete, LIMITS, &Totals::default(), |_| {}).await?;
    let stuck = totals.stuck.len();
    if totals.objects > 0 {
        let (objects, bytes) = (totals.objects, totals.bytes);
        tracing::info!(objects, bytes, stuck, elapsed = ?start.elapsed(), "degraded objects were completed");
    } else if stuck > 0 {
        let why = RepairError::Stuck(totals);
        tracing::debug!(%why, "nothing that is degraded can be completed yet");
    }
    Ok(())
}
