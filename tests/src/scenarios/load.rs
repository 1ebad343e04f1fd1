//! Many pods at once.

use std::{collections::VecDeque, thread};

use parking_lot::Mutex;

use crate::{Lab, Netns, Settings};

/// Concurrent callers of a busy runtime.
const CALLERS: usize = 16;

/// Runs `work` on each pod.
fn by_all_callers(pods: &[Netns], work: impl Fn(&Netns) + Sync) {
    let queue: Mutex<VecDeque<&Netns>> = Mutex::new(pods.iter().collect());
    let next = || queue.lock().pop_front();
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while let Some(pod) = next() {
                    work(pod);
                }
            });
        }
    });
}

/// One pod for each VF, all attached and detached by sixteen concurrent callers.
///
/// # Panics
/// If a call fails, or an invariant is violated.
pub fn pods_for_all_vfs_come_and_go(settings: &Settings) {
    let lab = Lab::start(settings);
    let pods: Vec<_> = (0..settings.vfs).map(|_| Netns::new("pod")).collect();
    by_all_callers(&pods, |pod| drop(lab.add("blue", pod, "eth0").result()));
    lab.assert_invariants();
    assert_eq!(lab.attachments_in("ATTACHED"), pods.len());
    by_all_callers(&pods, |pod| lab.del("blue", pod, "eth0").nothing());
    lab.assert_clean_slate();
}

/// A pod that many callers add and delete is attached at most once.
///
/// # Panics
/// If an expectation is not met.
pub fn concurrent_callers_attach_once(settings: &Settings) {
    let lab = Lab::start(settings);
    let pod = Netns::new("pod");
    let links = || pod.json("ip", &["link", "show"]).len();
    let own = links();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (lab, pod) = (&lab, &pod);
            scope.spawn(move || {
                let verb = if caller % 2 == 0 { "ADD" } else { "DEL" };
                let _ = lab.call(verb, "blue", pod, "eth0");
            });
        }
    });
    lab.assert_invariants();
    lab.await_settled();
    let attached = lab.operator().get("attachments");
    assert!(attached.len() <= 1, "{attached:?}");
    assert_eq!(links(), own + attached.len());
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!((lab.operator().get("attachments").len(), links()), (1, own + 1));
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
