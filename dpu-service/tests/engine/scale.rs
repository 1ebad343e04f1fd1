//! Costs on a DPU with thousands of VFs and networks: the same as on a small one.

use std::{hint::black_box, thread, time::Duration};

use tokio::{runtime::Handle, task::block_in_place};
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::{LARGE, RECORDED, SMALL, attach_and_detach, filled, median, start_with},
    world::World,
};

/// Number of timings of each.
const ROUNDS: usize = 200;

/// No part of an attach iterates over all VFs, attachments or networks. The sizes alternate, so that other load on the
/// machine slows down both.
#[tokio::test]
async fn attach_time_is_independent_of_size() {
    let (small, large) = (filled(SMALL).await, filled(LARGE).await);
    let (mut of_small, mut of_large) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_small.push(attach_and_detach(&small, SMALL).await);
        of_large.push(attach_and_detach(&large, LARGE).await);
    }
    for (half, what) in ["attach", "detach"].into_iter().enumerate() {
        let of = |times: &[[Duration; 2]]| median(times.iter().map(|both| both[half]).collect());
        let (few, many) = (of(&of_small), of(&of_large));
        assert!(many <= 2 * few, "{what}: {many:?} with many, {few:?} with few");
    }
    large.check();
}

/// Each row is read once at start: ten times as many take ten times as long, not a hundred times. The margin is for
/// other load on the machine.
#[tokio::test]
async fn start_time_grows_with_attachments() {
    let (some, all) = (start_with(RECORDED / 10).await, start_with(RECORDED).await);
    assert!(all <= 50 * some, "{all:?} with {RECORDED}, {some:?} with a tenth of them");
    assert!(all <= Duration::from_secs(20), "{all:?}");
}

/// While another caller lists everything without pause, attaches take at most a few times as long as next to a busy
/// loop. Watchers that do not read delay no attach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_watchers_do_not_hold_up_attaches() {
    let world = filled(LARGE).await;
    let _watchers: Vec<_> = (0..64).map(|_| world.engine.events().watch()).collect();
    let (mut beside_work, mut beside_lists) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        beside_work.extend(
            attaches_beside(&world, || {
                (0..10_000_u64).for_each(|number| drop(black_box(number.to_string())));
            })
            .await,
        );
        beside_lists.extend(
            attaches_beside(&world, || {
                black_box(world.list());
                black_box(world.engine.networks().list());
            })
            .await,
        );
    }
    let (quiet, held_up) = (median(beside_work), median(beside_lists));
    assert!(held_up <= 4 * quiet, "{held_up:?} beside lists, {quiet:?} beside other work");
}

/// Attaches while another thread repeats `work`.
async fn attaches_beside(world: &World, work: impl Fn() + Sync) -> Vec<Duration> {
    let over = CancellationToken::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.is_cancelled() {
                work();
            }
        });
        let _over = over.clone().drop_guard();
        let attach = || Handle::current().block_on(attach_and_detach(world, LARGE));
        block_in_place(|| (0..ROUNDS / 10).map(|_| attach()[0]).collect())
    })
}
