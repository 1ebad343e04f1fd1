//! Many simulated hosts at one DPU.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{Crowd, CrowdBehaviour, CrowdSize, Lab, Settings, scenarios::End, wait_for};

const SIZE: CrowdSize = CrowdSize { hosts: 24, pods: 3 };
/// Duration of a play.
const TIME: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);
const QUICK: CrowdBehaviour = CrowdBehaviour { pause: Duration::from_millis(20), faults: false };

/// A lab with a crowd at its DPU.
fn crowded() -> (Lab, Crowd) {
    let lab =
        Lab::start(&Settings { service: SIZE.sections(), cool_down: 1, ..Settings::default() });
    let crowd = Crowd::of_lab(&lab, SIZE, 7);
    (lab, crowd)
}

fn assert_nothing_left(lab: &Lab, crowd: &mut Crowd) {
    crowd.leave();
    assert_eq!(crowd.attached(), 0);
    crowd.assert_kept(lab);
    lab.assert_clean_slate();
}

#[test]
fn many_hosts_get_all_attachments() {
    let (lab, mut crowd) = crowded();
    let end = Instant::now() + TIME;
    crowd.play(QUICK, || Instant::now() > end);
    crowd.settle();
    crowd.assert_kept(&lab);
    let tally = crowd.take_tally();
    assert_eq!(tally.failed, 0, "{:?}", tally.refusals);
    assert!(tally.attaches.len() > SIZE.hosts && crowd.attached() > 0);
    assert_nothing_left(&lab, &mut crowd);
}

/// Number of further looks until the next event.
const LOOKS: usize = 300;

/// Kills the service while the crowd plays, and continues for a while.
fn play_while_the_service_dies(lab: &mut Lab, crowd: &mut Crowd) {
    let (looks, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let over = || {
        looks.fetch_add(1, Ordering::Relaxed);
        is_over.load(Ordering::Relaxed)
    };
    thread::scope(|scope| {
        let end = End(&is_over);
        scope.spawn(|| crowd.play(CrowdBehaviour { faults: true, ..QUICK }, over));
        let await_looks = |number| {
            let reached = || (looks.load(Ordering::Relaxed) > number).then_some(());
            wait_for("the crowd to play", LIMIT, reached);
        };
        await_looks(LOOKS);
        lab.service.crash();
        lab.start_service();
        await_looks(looks.load(Ordering::Relaxed) + LOOKS);
        drop(end);
    });
}

/// The service also dies during their calls.
#[test]
fn faulty_hosts_keep_grants_and_leave_nothing() {
    let (mut lab, mut crowd) = crowded();
    for _ in 0..3 {
        play_while_the_service_dies(&mut lab, &mut crowd);
        crowd.settle();
        crowd.assert_kept(&lab);
    }
    let tally = crowd.take_tally();
    assert!(tally.failed > 0 && !tally.attaches.is_empty(), "{tally:?}");
    assert_nothing_left(&lab, &mut crowd);
}

/// Checks the comparison on which the other tests rely.
#[test]
fn removed_grant_is_noticed() {
    let (lab, mut crowd) = crowded();
    let looks = AtomicUsize::new(0);
    crowd.play(QUICK, || looks.fetch_add(1, Ordering::Relaxed) > 4 * SIZE.hosts);
    crowd.settle();
    crowd.assert_kept(&lab);
    let attachment = lab.operator().get("attachments").swap_remove(0);
    let id = attachment["id"].as_str().unwrap();
    drop(lab.operator().output(&["release", id, "--reason", "a test", "-y"]));
    let amiss = crowd.amiss(&lab);
    assert!(
        amiss.iter().any(|reported| reported.starts_with("lost:") && reported.contains(id)),
        "{amiss:?}"
    );
}
