//! Numbers of resources that this process and the device hold, to detect leaks.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum time until the resources of closed connections are freed.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the numbers of resources that this process and the device hold, by name.
pub(crate) fn held() -> BTreeMap<String, u64> {
    let descriptors = fs::read_dir("/proc/self/fd").expect("the descriptors");
    let mut held = BTreeMap::from([("descriptors".to_owned(), descriptors.count() as u64)]);
    let context = super::context();
    let device = context.name().to_owned();
    drop(context);
    if device.starts_with("softroce") {
        let count = |kind| (format!("{kind:?}"), softroce::objects(kind));
        held.extend(softroce::Kind::ALL.into_iter().map(count));
        return held;
    }
    let shown = Command::new("rdma").args(["resource", "show"]).output();
    let shown = shown.expect("the tool `rdma`, of iproute2, can be run");
    assert!(shown.status.success(), "rdma resource show: {shown:?}");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    // One line for each device: `0: rxe_0: pd 1 cq 2 qp 3 cm_id 0 mr 4 ctx 1 srq 0`.
    let mut fields = shown
        .lines()
        .find_map(|line| line.split_once(&format!(" {device}: ")))
        .unwrap_or_else(|| panic!("{device} is not in {shown}"))
        .1
        .split_whitespace();
    while let (Some(name), Some(count)) = (fields.next(), fields.next()) {
        held.insert(name.to_owned(), count.parse().expect("a count"));
    }
    assert!(
        held.contains_key("qp") && held.contains_key("mr"),
        "{held:?}"
    );
    held
}

/// Waits until no resource count exceeds its count in `before`, and then replaces `before` by the
/// current counts, which may be lower. Panics with `after`, the name of the previous step, after
/// [`SETTLE_TIMEOUT`].
pub(crate) async fn settle(before: &mut BTreeMap<String, u64>, after: &str) {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let now = held();
        if now.len() == before.len()
            && now
                .iter()
                .all(|(kind, count)| before.get(kind) >= Some(count))
        {
            *before = now;
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{after}: {before:?} became {now:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
