//! Many pods at once.

use std::{collections::VecDeque, sync::Mutex, thread};

use e2e::{Lab, Netns, Settings};

const PODS: usize = 200;
const CALLERS: usize = 16;

/// Runs `work` on each pod, by as many callers at once as a busy runtime has.
fn by_all_callers(pods: &[Netns], work: impl Fn(&Netns) + Sync) {
    let queue: Mutex<VecDeque<&Netns>> = Mutex::new(pods.iter().collect());
    let next = || queue.lock().unwrap().pop_front();
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

#[test]
fn two_hundred_pods_come_and_go_by_sixteen_callers_at_once() {
    let lab = Lab::start(&Settings::with_vfs(u32::try_from(PODS).unwrap()));
    let pods: Vec<_> = (0..PODS).map(|_| Netns::new("pod")).collect();
    by_all_callers(&pods, |pod| drop(lab.add("blue", pod, "eth0").result()));
    lab.assert_invariants();
    assert_eq!(lab.attachments_in("ATTACHED"), PODS);
    by_all_callers(&pods, |pod| lab.del("blue", pod, "eth0").nothing());
    lab.assert_clean_slate();
}

#[test]
fn the_same_pod_added_and_deleted_by_many_callers_is_attached_at_most_once() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
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
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}
