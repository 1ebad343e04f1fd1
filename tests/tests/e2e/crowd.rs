//! Many hosts at one DPU, which are played.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use e2e::{Crowd, CrowdSize, Lab, Manners, Settings};

const SIZE: CrowdSize = CrowdSize { hosts: 24, pods: 3 };
/// How long they play at a time.
const TIME: Duration = Duration::from_secs(5);
const QUICK: Manners = Manners { pause: Duration::from_millis(20), faults: false };

/// A lab of a DPU with a crowd, and the crowd.
fn crowded() -> (Lab, Crowd) {
    let lab =
        Lab::start(&Settings { service: SIZE.sections(), cool_down: 1, ..Settings::default() });
    let crowd = Crowd::of_lab(&lab, SIZE, 7);
    (lab, crowd)
}

fn play(crowd: &mut Crowd, manners: Manners) {
    let end = Instant::now() + TIME;
    crowd.play(manners, || Instant::now() > end);
}

fn assert_nothing_left(lab: &Lab, crowd: &mut Crowd) {
    crowd.leave();
    assert_eq!(crowd.attached(), 0);
    crowd.assert_kept(lab);
    lab.assert_clean_slate();
}

#[test]
fn many_hosts_are_granted_all_that_they_ask_for() {
    let (lab, mut crowd) = crowded();
    play(&mut crowd, QUICK);
    crowd.settle();
    crowd.assert_kept(&lab);
    let tally = crowd.take_tally();
    assert_eq!(tally.failed, 0, "{:?}", tally.refusals);
    assert!(tally.attaches.len() > SIZE.hosts && crowd.attached() > 0);
    assert_nothing_left(&lab, &mut crowd);
}

/// And the service dies amid their calls.
#[test]
fn many_hosts_that_break_off_and_boot_keep_what_they_were_granted_and_leave_nothing() {
    let (mut lab, mut crowd) = crowded();
    for _ in 0..3 {
        play(&mut crowd, Manners { faults: true, ..QUICK });
        lab.service.crash();
        lab.start_service();
        crowd.settle();
        crowd.assert_kept(&lab);
    }
    let tally = crowd.take_tally();
    assert!(tally.failed > 0 && !tally.attaches.is_empty(), "{tally:?}");
    assert_nothing_left(&lab, &mut crowd);
}

/// The comparison that the others rely on sees it.
#[test]
fn what_a_host_was_granted_and_is_taken_away_is_seen() {
    let (lab, mut crowd) = crowded();
    let looks = AtomicUsize::new(0);
    crowd.play(QUICK, || looks.fetch_add(1, Ordering::Relaxed) > 4 * SIZE.hosts);
    crowd.settle();
    crowd.assert_kept(&lab);
    let attachment = lab.operator().get("attachments").swap_remove(0);
    let id = attachment["id"].as_str().unwrap();
    drop(lab.operator().says(&["release", id, "--reason", "a test", "-y"]));
    let amiss = crowd.amiss(&lab);
    assert!(amiss.iter().any(|told| told.starts_with("lost:") && told.contains(id)), "{amiss:?}");
}
