//! Wishes that can be met, with how many devices; and those that cannot, with what the cluster can give.

use super::*;
use crate::{
    Epoch, IndexRanges, SegmentId, Version,
    layout::{CodeSpec, Holder, SegmentLayout},
    read::RequestRule,
};
use core::time::Duration;

const MB: u64 = 1_000_000;

fn wish(text: &str) -> Wish {
    Wish { quality: text.parse().unwrap(), round_trip: Duration::from_millis(1) }
}

/// As a put plans: the bucket's policy raised by the wish.
fn plan(disks: &[Candidate], bucket: &str, length: u64, text: &str) -> Result<Plan, PlanError> {
    let wish = wish(text);
    let wanted = wanted(bucket, length);
    let policy = wish.quality.policy(&wanted.policy)?;
    choose_for(disks, &Wanted { policy, ..wanted }, &wish)
}

#[test]
fn as_few_devices_as_meet_the_bandwidth_and_what_each_keeps() {
    let disks = cluster(20, 1);
    // 90 of each disk's 100 MB/s can be promised; D = 0.5 makes 600 MB/s of 400: seven.
    let chosen = plan(&disks, "rateless", GIB, "bandwidth=400MB").unwrap();
    assert_eq!(chosen.devices.len(), 7);
    let kept: u64 = chosen.devices.iter().map(|device| device.reserve_bytes_per_s).sum();
    // With headroom it would be 660, but they have 630.
    assert!((629 * MB..=631 * MB).contains(&kept), "{kept}");
    assert!(chosen.devices.iter().all(|device| device.reserve_bytes_per_s <= 90 * MB + 1));
    // More copies of everything take more devices; so do more accesses; a wish for a number is kept to.
    assert_eq!(plan(&disks, "rateless", GIB, "bandwidth=400MB,redundancy=3").unwrap().devices.len(), 18);
    assert_eq!(plan(&disks, "rateless", GIB, "bandwidth=200MB,accesses=4").unwrap().devices.len(), 14);
    assert_eq!(plan(&disks, "rateless", GIB, "bandwidth=400MB,devices=12").unwrap().devices.len(), 12);
    // Without a wish nothing is kept and nothing changes.
    let plain = choose(&disks, &wanted("rateless", GIB)).unwrap();
    assert_eq!(plain, plan(&disks, "rateless", GIB, "").unwrap());
    assert!(plain.devices.iter().chain(&plain.spares).all(|device| device.reserve_bytes_per_s == 0));
    // A stripe goes as fast as its slowest disk allows them all.
    let mut disks = cluster(4, 1);
    disks[2].write_bytes_per_s = 10 * MB;
    assert_eq!(plan(&disks, "stripe", GIB, "bandwidth=250MB").unwrap().devices.len(), 3);
    let four = plan(&disks, "stripe", GIB, "bandwidth=250MB,devices=4").unwrap_err();
    assert!(matches!(four, PlanError::Bandwidth { given_bytes_per_s: 36_000_000, .. }), "{four:?}");
}

#[test]
fn an_impossible_wish_is_told_what_there_is() {
    let disks = cluster(6, 1);
    let error = plan(&disks, "rateless", GIB, "bandwidth=500MB,accesses=4").unwrap_err();
    assert_eq!(
        error.to_string(),
        "wanted 500 MB/s for each of 4 accesses, the 6 devices that can take data give 360 MB/s"
    );
    assert!(!error.is_reserved_by_others());
    let error = plan(&disks, "rateless", GIB, "bandwidth=2GB,redundancy=1").unwrap_err();
    assert_eq!(error.to_string(), "wanted 2 GB/s, the 6 devices that can take data give 270 MB/s");
    // 1.5 GiB to 540 MB/s are 2.98 s, and 4 round trips; 5 % for each of six disks is 2 % for all.
    let error = plan(&disks, "rateless", GIB, "latency=2s").unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains(
            "wanted 1073741824 bytes within 2000 ms, the 6 devices that can take data take 2986 ms"
        ),
        "{said}"
    );
    assert!(said.contains("(3113 ms when they are slow, 4 ms of it round trips)"), "{said}");
    // A wish is told as it was made, however short.
    for (wish, told) in [("latency=1us", "within 1 us,"), ("latency=1500us", "within 1.5 ms,")] {
        let said = plan(&disks, "rateless", GIB, wish).unwrap_err().to_string();
        assert!(said.contains(told), "{said}");
    }
    assert!(plan(&disks, "rateless", GIB, "latency=3.2s").is_ok());
    // The round trip alone takes longer.
    let far = Wish { round_trip: Duration::from_millis(100), ..wish("latency=300ms") };
    let error = choose_for(&disks, &wanted("rateless", 2 * MIB), &far).unwrap_err();
    assert!(error.to_string().contains("400 ms of it round trips"), "{error}");
    let few = |text| plan(&disks, "rateless", GIB, text).unwrap_err().to_string();
    assert_eq!(few("devices=16"), "wanted 16 devices, 6 can take data: 10 missing");
    assert_eq!(few("sites=3"), "wanted 3 sites, 2 can take data: 1 missing");
    assert!(few("tolerate=6").contains("needs 7 nodes"));
}

#[test]
fn load_sharing_and_reservations_of_others_count() {
    let mut disks = cluster(8, 1);
    // Others reserved 60 of 100 MB/s of reading on half of them: 30 are left to promise there, of any kind.
    disks.iter_mut().take(4).for_each(|disk| disk.reserved_read_bytes_per_s = 60 * MB);
    let chosen = plan(&disks, "rateless:devices=4,tolerate=1", GIB, "bandwidth=200MB").unwrap();
    assert!(chosen.devices.iter().all(|device| device.device.0 >= 104), "{chosen:?}");
    let error = plan(&disks, "rateless", GIB, "bandwidth=400MB").unwrap_err();
    assert_eq!(
        error.to_string(),
        "wanted 400 MB/s, the 8 devices that can take data give 320 MB/s; 160 MB/s more are reserved by others: try \
         again later"
    );
    assert!(error.is_reserved_by_others());
    // One that refused a moment ago promises nothing, but stays a spare.
    disks[7].refused = true;
    let chosen = plan(&disks, "rateless", GIB, "bandwidth=200MB").unwrap();
    assert!(chosen.devices.iter().all(|device| device.device.0 != 107));
    assert_eq!(chosen.spares.last().map(|device| device.device.0), Some(107));
    // What two accesses leave of each other is measured: 60 %, less the tenth.
    let mut disks = cluster(6, 1);
    disks.iter_mut().for_each(|disk| disk.sharing_ppm[0] = 600_000);
    let error = plan(&disks, "rateless", GIB, "bandwidth=200MB,accesses=2").unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { given_bytes_per_s: 200_000_000, .. }), "{error}");
    // Queues make the time less sure, and the mean longer.
    let quiet = plan(&disks, "rateless", GIB, "latency=3.2s");
    disks.iter_mut().for_each(|disk| disk.queue_length = 8);
    assert!(quiet.is_ok() && plan(&disks, "rateless", GIB, "latency=3.2s").is_err());
}

#[test]
fn where_nothing_was_measured_the_nodes_decide() {
    let mut disks = cluster(6, 1);
    disks.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
    let chosen = plan(&disks, "rateless", GIB, "bandwidth=600MB").unwrap();
    assert_eq!(chosen.devices.len(), 6);
    assert!(chosen.devices.iter().all(|device| device.reserve_bytes_per_s == 165 * MB), "{chosen:?}");
    // One known speed stands in for all.
    disks[3].write_bytes_per_s = 10 * MB;
    assert!(plan(&disks, "rateless", GIB, "bandwidth=600MB").is_err());
}

#[test]
fn sites_and_small_objects() {
    let disks = cluster(8, 2);
    for sites in 1..=2 {
        let chosen =
            plan(&disks, "rateless:tolerate=0", 2 * MIB, &format!("bandwidth=1MB,sites={sites}")).unwrap();
        let nodes: BTreeSet<u128> = chosen.devices.iter().map(|device| device.node.0 % 2).collect();
        assert!(nodes.len() >= sites, "{chosen:?}");
    }
    // Copies: the wish for a pace does not multiply them.
    assert_eq!(plan(&disks, "rateless", 1000, "bandwidth=100MB").unwrap().devices.len(), 3);
}

fn holdings(bytes: &[u64]) -> Vec<Holding> {
    let holding = |(device, &bytes)| Holding { device: DeviceId(device), bytes, spare_bytes: 0 };
    (100..).zip(bytes).map(holding).collect()
}

#[test]
fn a_read_reserves_what_each_holder_is_to_send() {
    let disks = cluster(6, 1);
    // 600 MB with D = 0.5, 150 MB on each of six.
    let held = holdings(&[150 * MB; 6]);
    let asked = |text: &str| fetch(&held, &disks, 600 * MB, &wish(text));
    let kept = asked("bandwidth=300MB").unwrap();
    assert_eq!((kept.reserve.len(), kept.rule), (6, None));
    // 330 MB/s with headroom, a sixth each.
    assert!(kept.reserve.iter().all(|&(_, rate)| (54 * MB..56 * MB).contains(&rate)), "{kept:?}");
    assert_eq!(asked("accesses=2").unwrap(), Fetch { reserve: Vec::new(), rule: None });
    assert_eq!(asked("latency=5s,accesses=3").unwrap().rule, None);
    assert_eq!(
        asked("bandwidth=2GB").unwrap_err().to_string(),
        "wanted 2 GB/s, the 6 devices that can send it give 540 MB/s"
    );
    let late = asked("latency=1s").unwrap_err().to_string();
    assert!(late.contains("the 6 devices that can send it take 1114 ms"), "{late}");
    // A stripe: every holder must give all it has, however fast the others are.
    let mut unequal = disks.clone();
    unequal[0].read_bytes_per_s = 20 * MB;
    let stripe = holdings(&[100 * MB; 6]);
    let error = fetch(&stripe, &unequal, 600 * MB, &wish("bandwidth=300MB")).unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { given_bytes_per_s: 108_000_000, .. }), "{error:?}");
    // The same disks with redundancy: the others make good for it.
    let kept = fetch(&held, &unequal, 600 * MB, &wish("bandwidth=300MB")).unwrap();
    let of = |device: u128| kept.reserve.iter().find(|(id, _)| id.0 == device).unwrap().1;
    assert!(of(100) < of(101) / 4 && of(101) <= 75 * MB, "{kept:?}");
}

/// Blocks `blocks` of a segment of 12 originals of 1 MiB, of which six devices hold three each.
fn segment() -> SegmentLayout {
    let (segment, version) = (SegmentId(7), Version(1));
    let holder = |device: u32| {
        let blocks = (3 * device..3 * device + 3).into();
        Holder::whole(DeviceId((100 + device).into()), segment, version, blocks)
    };
    SegmentLayout {
        segment,
        version,
        epoch: Epoch(1),
        length: 12 * MIB,
        code: CodeSpec { kind: CodeKind::Mix, originals: 12, seed: 0 },
        block_bytes: MIB as u32,
        granule_bytes: 64 << 10,
        holders: (0..6).map(holder).collect(),
    }
}

#[test]
fn a_range_counts_on_those_alone_that_hold_its_blocks() {
    let (mut disks, layout) = (cluster(6, 1), segment());
    let range = IndexRanges::from(4..6);
    let asked = |disks: &[Candidate], text: &str| {
        fetch(&held([(&layout, Some(&range))], disks), disks, 2 * MIB, &wish(text))
    };
    let kept = asked(&disks, "bandwidth=50MB").unwrap().reserve;
    assert!(matches!(kept[..], [(DeviceId(101), rate)] if (49 * MB..56 * MB).contains(&rate)), "{kept:?}");
    let error = asked(&disks, "bandwidth=200MB").unwrap_err().to_string();
    assert_eq!(error, "wanted 200 MB/s, the 1 device that can send it gives 90 MB/s");
    // What the others hold makes good for it all the same, where there is time for that.
    assert_eq!(asked(&disks, "latency=1s").unwrap().rule, None);
    assert_eq!(asked(&disks, "latency=29ms").unwrap().rule, Some(RequestRule::All));
    assert!(asked(&disks, "latency=20ms").is_err());
    // Decoded, of any.
    disks[1].alive = false;
    assert_eq!(asked(&disks, "bandwidth=200MB").unwrap().reserve.len(), 5);
    let all = held([(&layout, None), (&layout, Some(&range))], &cluster(6, 1));
    let bytes: Vec<_> = all.iter().map(|held| (held.bytes / MIB, held.spare_bytes / MIB)).collect();
    assert_eq!(bytes, [(3, 3), (5, 1), (3, 3), (3, 3), (3, 3), (3, 3)]);
}

/// Copies are not decoded: what others hold of the segment is no use to a range whose first copies are out of reach.
#[test]
fn a_range_of_copies_counts_on_another_copy_alone() {
    let mut disks = cluster(6, 1);
    disks[1].alive = false;
    let range = IndexRanges::from(2..6);
    let asked = |layout: &SegmentLayout, text: &str| {
        fetch(&held([(layout, Some(&range))], &disks), &disks, 4 * MIB, &wish(text))
    };
    let mut layout = segment();
    layout.code.kind = CodeKind::Replicated;
    let own = |device: u32| 2 * device..2 * device + 2;
    // Two originals on each of six devices, their second copies on the device before.
    for (device, holder) in (0..6u32).zip(&mut layout.holders) {
        let next = own((device + 1) % 6);
        holder.pieces[0].blocks = own(device).chain(12 + next.start..12 + next.end).collect();
    }
    let devices = |kept: Fetch| kept.reserve.into_iter().map(|(device, _)| device.0).collect::<Vec<_>>();
    assert_eq!(devices(asked(&layout, "bandwidth=100MB").unwrap()), [100, 102]);
    let error = asked(&layout, "bandwidth=200MB").unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { devices: 2, .. }), "{error:?}");
    // Of a stripe nobody has another.
    for (device, holder) in (0..6).zip(&mut layout.holders) {
        holder.pieces[0].blocks = own(device).into();
    }
    let error = asked(&layout, "bandwidth=200MB").unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { devices: 1, .. }), "{error:?}");
}

#[test]
fn holders_that_refused_or_are_gone_keep_nothing() {
    let mut disks = cluster(6, 1);
    disks[0].refused = true;
    disks[1].alive = false;
    disks[2].reserved_write_bytes_per_s = 90 * MB;
    let held = holdings(&[150 * MB; 6]);
    let kept = fetch(&held, &disks, 400 * MB, &wish("bandwidth=240MB")).unwrap();
    let devices: Vec<u128> = kept.reserve.iter().map(|(device, _)| device.0).collect();
    assert_eq!(devices, [103, 104, 105]);
    // In the time wished for, three can give no more than they hold.
    let error = fetch(&held, &disks, 600 * MB, &wish("bandwidth=240MB")).unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { given_bytes_per_s: 0, .. }), "{error:?}");
    assert!(error.is_reserved_by_others());
}

/// However fast it was before, and whether or not that is known.
#[test]
fn what_stalls_or_has_failed_can_promise_nothing() {
    let all = holdings(&[150 * MB; 6]);
    for health in [DeviceHealth::Stalled, DeviceHealth::Failed] {
        let mut disks = cluster(6, 1);
        disks[2].health = health;
        let asked = |disks: &[Candidate], text: &str| fetch(&all, disks, 600 * MB, &wish(text));
        // Five of 90 MB/s. Waiting does not help as it does where others have reserved what is missing.
        let error = asked(&disks, "bandwidth=460MB").unwrap_err();
        assert_eq!(error.to_string(), "wanted 460 MB/s, the 5 devices that can send it give 450 MB/s");
        assert!(!error.is_reserved_by_others());
        let devices = |kept: Vec<(DeviceId, u64)>| kept.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        let others = [100, 101, 103, 104, 105];
        assert_eq!(devices(asked(&disks, "bandwidth=440MB").unwrap().reserve), others);
        assert!(asked(&disks, "latency=1.3s").is_err() && asked(&cluster(6, 1), "latency=1.3s").is_ok());
        // Of a stripe it has what nobody else has.
        let error = fetch(&holdings(&[100 * MB; 6]), &disks, 600 * MB, &wish("bandwidth=1MB")).unwrap_err();
        assert!(matches!(error, PlanError::Bandwidth { devices: 5, given_bytes_per_s: 0, .. }), "{error:?}");
        // A range that lies there is decoded, of what the others hold.
        let (layout, range) = (segment(), IndexRanges::from(6..9));
        let kept = fetch(&held([(&layout, Some(&range))], &disks), &disks, 3 * MIB, &wish("bandwidth=9MB"));
        assert_eq!(devices(kept.unwrap().reserve), others);
        // What a change would write there is written by the others; alone it is not made in any time.
        let parts = [part(101, 4, 4), part(102, 4, 4)];
        assert_eq!(devices(revise(&parts, &disks, MB, &wish("bandwidth=1MB")).unwrap()), [101]);
        assert!(revise(&parts[1..], &disks, MB, &wish("latency=60s")).is_err());
        // A put has others.
        let chosen = plan(&disks, "rateless", GIB, "bandwidth=250MB").unwrap();
        assert!(chosen.devices.iter().all(|planned| planned.device.0 != 102), "{chosen:?}");
        // Nothing was measured: the nodes decide, of those that serve.
        disks.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
        assert_eq!(devices(asked(&disks, "bandwidth=1MB").unwrap().reserve), others);
        assert_eq!(devices(revise(&parts, &disks, MB, &wish("bandwidth=1MB")).unwrap()), [101]);
        let of_stripe = |text: &str| fetch(&holdings(&[100 * MB; 6]), &disks, 600 * MB, &wish(text));
        for text in ["bandwidth=1MB", "latency=60s"] {
            assert!(of_stripe(text).is_err(), "{text}");
        }
    }
    // One that is full sends what it has.
    let mut disks = cluster(6, 1);
    disks[2].health = DeviceHealth::Full;
    assert_eq!(fetch(&all, &disks, 600 * MB, &wish("bandwidth=500MB")).unwrap().reserve.len(), 6);
}

/// All chunks of a segment wait for one that stalls: fewer do not, where the bucket takes them.
#[test]
fn chunks_that_stall_are_done_without_where_a_pace_is_wished_for() {
    let mut disks = cluster(6, 1);
    disks[4].health = DeviceHealth::Stalled;
    let stored = |bucket: &str, text: &str| plan(&disks, bucket, 16 * MIB, text);
    let error = stored("parity", "bandwidth=50MB").unwrap_err();
    assert!(matches!(error, PlanError::Bandwidth { given_bytes_per_s: 0, .. }), "{error:?}");
    let fewer = stored("parity:least=5", "bandwidth=50MB").unwrap();
    assert_eq!((fewer.devices.len(), fewer.stalled), (5, false));
    assert_eq!(stored("parity:least=5", "").unwrap().devices.len(), 6, "it may be over in a moment");
    // More than five give.
    assert!(stored("parity:least=5", "bandwidth=500MB").is_err());
}

/// A wished number of devices is exact: it is neither raised to what the policy needs nor lowered to those that have room.
#[test]
fn a_number_of_devices_is_kept_or_refused() {
    let disks = cluster(8, 2);
    let few = |text: &str, length| plan(&disks, "rateless", length, text).unwrap_err().to_string();
    let said = "wanted 1 device, but what is stored has to be on 3 nodes: wish for 3 at least";
    assert_eq!(few("devices=1", GIB), said);
    assert_eq!(few("devices=1", 1000), said, "copies are on as many");
    let error = plan(&disks, "rateless", GIB, "devices=4,tolerate=4").unwrap_err();
    assert_eq!(error, PlanError::FewDevices { wanted: 4, needed: 5, domain: "nodes" });
    // A wish for sites adds none to a number that can be on so many.
    for (text, number) in
        [("devices=3", 3), ("devices=4", 4), ("devices=3,sites=2", 3), ("devices=4,sites=2", 4)]
    {
        let chosen = plan(&disks, "rateless", GIB, text).unwrap();
        assert_eq!(chosen.devices.len(), number, "{text}");
        assert!(in_domains(&chosen).len() >= 3 && on_sites(&disks, &chosen) == 2, "{text}: {chosen:?}");
    }
    let quality = Quality { devices: Some(2), sites: Some(3), ..Quality::default() };
    let wish = Wish { quality, ..Wish::default() };
    let mut three = cluster(6, 1);
    three.iter_mut().take(2).for_each(|disk| disk.site = "site2".to_owned());
    let asked = |text: &str| choose_for(&three, &wanted(text, GIB), &wish).unwrap_err();
    assert_eq!(
        asked("rateless:tolerate=1,devices=2"),
        PlanError::FewDevices { wanted: 2, needed: 3, domain: "sites" }
    );
    // A bucket's number is no wish: it is raised for one.
    let wish = Wish { quality: Quality { devices: None, ..quality }, ..wish };
    let raised = choose_for(&three, &wanted("rateless:tolerate=1,devices=2", GIB), &wish).unwrap();
    assert_eq!((raised.devices.len(), on_sites(&three, &raised)), (3, 3));
    // A stripe needs all that are wished for to have room.
    let mut disks = cluster(4, 1);
    disks[2].free_bytes = 10 * MIB;
    assert_eq!(plan(&disks, "stripe", GIB, "devices=3").unwrap().devices.len(), 3);
    let error = plan(&disks, "stripe", GIB, "devices=4").unwrap_err();
    assert!(matches!(error, PlanError::Room { domain: "devices", needed: 4, available: 3, .. }), "{error}");
}

fn on_sites(disks: &[Candidate], plan: &Plan) -> usize {
    let site = |device| disks.iter().find(|disk| disk.device == device).unwrap().site.as_str();
    plan.devices.iter().map(|planned| site(planned.device)).collect::<BTreeSet<_>>().len()
}

/// One site has most of the disks: without the wish all copies go there.
#[test]
fn copies_are_on_as_many_sites_as_wished_for() {
    // Two nodes of four disks on a site, one of one disk on another.
    let mut disks = cluster(3, 4);
    disks.truncate(9);
    for disk in &mut disks {
        disk.site = if disk.node == NodeId(2) { "b" } else { "a" }.to_owned();
    }
    let stored = |disks: &[Candidate], text: &str| plan(disks, "replicated:copies=2", 64 * MIB, text);
    let plain = stored(&disks, "").unwrap();
    assert_eq!((plain.devices.len(), on_sites(&disks, &plain)), (8, 1));
    let wide = stored(&disks, "sites=2").unwrap();
    assert_eq!((wide.devices.len(), in_domains(&wide).len(), on_sites(&disks, &wide)), (3, 3, 2));
    // Also where disks without room for their share are left out, unless they are all of a site's.
    let mut full = disks.clone();
    full.iter_mut().take(4).for_each(|disk| disk.free_bytes = 20 * MIB);
    let left = stored(&full, "sites=2").unwrap();
    assert_eq!((left.devices.len(), on_sites(&full, &left)), (2, 2));
    let mut full = disks.clone();
    full[8].free_bytes = 20 * MIB;
    assert!(stored(&full, "").is_ok());
    assert!(matches!(stored(&full, "sites=2"), Err(PlanError::Space { .. })));
    // One block has as many copies as there are, on as many devices.
    let small = |text: &str| plan(&disks, "replicated:copies=2", 1000, text);
    assert_eq!(on_sites(&disks, &small("sites=2").unwrap()), 2);
    let mut third = disks.clone();
    third[0].site = "c".to_owned();
    let error = plan(&third, "replicated:copies=2", 1000, "sites=3").unwrap_err();
    assert_eq!(error, PlanError::FewCopies { wanted: 3, copies: 2 });
    assert_eq!(
        error.to_string(),
        "wanted 3 sites, but an object so small is stored as 2 copies: wish for 2 at most"
    );
}

/// What refused a moment ago would do so again: no speed tells it from the others.
#[test]
fn those_that_refused_come_last_where_no_speed_is_known() {
    let mut disks = cluster(8, 1);
    disks.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
    for refusing in 0..8 {
        disks.iter_mut().for_each(|disk| disk.refused = false);
        disks[refusing].refused = true;
        let chosen = plan(&disks, "rateless", GIB, "bandwidth=100MB").unwrap();
        let last = chosen.spares.last().map(|planned| planned.device);
        assert_eq!((chosen.devices.len(), last), (6, Some(disks[refusing].device)));
        let held = holdings(&[150 * MB; 8]);
        let kept = fetch(&held, &disks, 800 * MB, &wish("bandwidth=80MB")).unwrap().reserve;
        assert!(kept.iter().all(|&(device, _)| device != disks[refusing].device), "{kept:?}");
        // The others give its part.
        let rates: Vec<u64> = kept.iter().map(|&(_, rate)| rate).collect();
        assert_eq!(rates, [11_428_572; 7]);
        // What only all of them hold is asked of all.
        let all =
            fetch(&holdings(&[100 * MB; 8]), &disks, 800 * MB, &wish("bandwidth=80MB")).unwrap().reserve;
        assert_eq!(all.len(), 8);
    }
    // Failure domains come before that: no node is left out whose disks all refused, where it is needed.
    let mut disks = cluster(3, 4);
    disks.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
    disks.iter_mut().take(4).for_each(|disk| disk.refused = true);
    let chosen = plan(&disks, "rateless", GIB, "bandwidth=100MB,devices=6").unwrap();
    assert_eq!((chosen.devices.len(), in_domains(&chosen).len()), (6, 3));
    assert_eq!(chosen.devices.iter().filter(|planned| planned.node == NodeId(0)).count(), 1);
}

/// Everything is asked for only where the wish leaves no time to make good for a device that fails.
#[test]
fn the_request_rule_follows_from_the_time_there_is() {
    let disks = cluster(6, 1);
    let (held, length) = (holdings(&[150 * MB; 6]), 600 * MB);
    let rule = |held: &[Holding], disks: &[Candidate], text: &str| {
        fetch(held, disks, length, &wish(text)).unwrap().rule
    };
    // 600 MB take 1.11 s of 540 MB/s, 1.16 s when they are slow; a sixth of it takes the five others 0.22 s more.
    for (latency, expected) in
        [("1.3s", Some(RequestRule::All)), ("1.36s", Some(RequestRule::All)), ("1.45s", None)]
    {
        assert_eq!(rule(&held, &disks, &format!("latency={latency}")), expected, "{latency}");
    }
    // Others are as urgent: nobody asks for more than that.
    assert_eq!(rule(&held, &disks, "latency=3s,accesses=2"), None);
    // One device that sends much of it takes long to make good for.
    let mut unequal = disks.clone();
    unequal[0].read_bytes_per_s = 500 * MB;
    let much = holdings(&[400 * MB, 120 * MB, 120 * MB, 120 * MB, 120 * MB, 120 * MB]);
    assert_eq!(rule(&much, &unequal, "latency=1.2s"), Some(RequestRule::All));
    assert_eq!(rule(&much, &unequal, "latency=2s"), None);
    // Without redundancy the others cannot, and all of it is needed anyway.
    assert_eq!(rule(&holdings(&[100 * MB; 6]), &disks, "latency=60s"), Some(RequestRule::All));
    // Nothing to judge by.
    let mut unknown = disks;
    unknown.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
    assert_eq!(rule(&held, &unknown, "latency=60s"), Some(RequestRule::All));
}

fn part(device: u128, read_mb: u64, write_mb: u64) -> Part {
    Part { device: DeviceId(device), read_bytes: read_mb * MB, write_bytes: write_mb * MB }
}

#[test]
fn a_change_reserves_what_each_device_is_to_read_and_write() {
    let mut disks = cluster(6, 1);
    disks.iter_mut().for_each(|disk| disk.read_bytes_per_s = 200 * MB);
    // 4 MB read and written on each of four of them: 6 MB of writing, and one has twice as much.
    let parts = [part(100, 4, 4), part(101, 4, 4), part(102, 4, 4), part(103, 8, 8)];
    let asked = |disks: &[Candidate], text: &str| revise(&parts, disks, MB, &wish(text));
    assert_eq!(asked(&disks, "redundancy=2").unwrap(), []);
    // A second for it all, with headroom.
    let kept = asked(&disks, "bandwidth=1MB").unwrap();
    let rates: Vec<u64> = kept.iter().map(|(_, rate)| rate / 100_000).collect();
    assert_eq!(rates, [66, 66, 66, 132], "{kept:?}");
    // 12 MB of writing take the one 133 ms of 90 MB/s: no more than 7.5 MB/s of change.
    assert!(asked(&disks, "bandwidth=7400kB").is_ok());
    assert_eq!(
        asked(&disks, "bandwidth=8MB").unwrap_err().to_string(),
        "wanted 8 MB/s, the 4 devices that can change it give 7.5 MB/s"
    );
    // 148 ms when it is slow, and six round trips.
    let error = asked(&disks, "latency=150ms").unwrap_err().to_string();
    assert!(error.contains("that can change it take 139 ms (154 ms when they are slow"), "{error}");
    assert!(asked(&disks, "latency=160ms").is_ok());
    // Two such changes at once have half of it each.
    assert!(asked(&disks, "bandwidth=4MB,accesses=2").is_err());
    // What one refused to promise is written by the others, as much as each can.
    disks[3].refused = true;
    let kept = asked(&disks, "bandwidth=1MB").unwrap();
    assert_eq!(kept.iter().map(|(device, _)| device.0).collect::<Vec<_>>(), [100, 101, 102]);
    assert!(kept.iter().all(|&(_, rate)| (95..=96).contains(&(rate / 100_000))), "{kept:?}");
    // Reserved by others: waiting may help.
    disks.iter_mut().for_each(|disk| disk.reserved_read_bytes_per_s = 180 * MB);
    let error = asked(&disks, "bandwidth=1MB").unwrap_err();
    assert!(error.is_reserved_by_others(), "{error}");
    disks.iter_mut().for_each(|disk| disk.refused = true);
    assert!(asked(&disks, "latency=10s").is_err());
    // Nothing was measured: the nodes decide.
    let mut unknown = cluster(6, 1);
    unknown.iter_mut().for_each(|disk| (disk.read_bytes_per_s, disk.write_bytes_per_s) = (0, 0));
    assert_eq!(asked(&unknown, "bandwidth=1MB").unwrap()[3], (DeviceId(103), 16 * MB));
    // And all of them have refused.
    unknown.iter_mut().for_each(|disk| disk.refused = true);
    let error = asked(&unknown, "bandwidth=1MB").unwrap_err().to_string();
    assert_eq!(error, "wanted 1 MB/s, the 4 devices that can change it give 0 B/s");
    assert!(asked(&unknown, "latency=10s").is_err());
    assert_eq!(asked(&unknown, "redundancy=2").unwrap(), []);
}

#[test]
fn a_wish_for_a_part_is_its_share_of_the_time() {
    let whole = Wish { round_trip: Duration::from_millis(40), ..wish("latency=2s,bandwidth=3MB") };
    let part = whole.part(1, 4);
    assert_eq!(
        (part.quality.latency, part.round_trip),
        (Some(Duration::from_millis(500)), Duration::from_millis(10))
    );
    assert_eq!(part.quality.bandwidth_bytes_per_s, Some(3 * MB));
}

/// Each of eight segments alone would be stored in a second; all of them are not.
#[test]
fn a_part_that_is_too_slow_is_told_as_the_whole() {
    let (whole, all) = (wish("latency=1s"), 512 * MB);
    let wanted = wanted("rateless:redundancy=0.5,tolerate=2", all / 8);
    assert!(choose_for(&cluster(6, 1), &wanted, &whole).is_ok());
    let refused = choose_for(&cluster(6, 1), &wanted, &whole.part(all / 8, all)).unwrap_err();
    let told = refused.of_whole((all / 8, all), &whole);
    // 540 MB/s, and half as much again is stored.
    let PlanError::Latency { bytes, wanted, expected, .. } = told else { panic!("{told:?}") };
    assert_eq!((bytes, wanted), (all, Duration::from_secs(1)));
    let about = Duration::from_millis(1400)..Duration::from_millis(1900);
    assert!(about.contains(&expected.mean) && about.contains(&expected.late), "{expected:?}");
}
