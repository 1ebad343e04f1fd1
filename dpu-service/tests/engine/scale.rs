//! What a DPU with thousands of VFs and networks costs: as much as a small one does.

use std::{hint::black_box, thread, time::Duration};

use tokio::{runtime::Handle, task::block_in_place};
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::{LARGE, RECORDED, SMALL, attach_and_detach, filled, median, start_with},
    world::World,
};

/// How often each is timed.
const ROUNDS: usize = 200;

/// Nothing that an attach does looks at all VFs, attachments or networks. In turn, so that whatever else the machine
/// does slows down both.
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

/// What is read at start is read once: ten times as much takes ten times as long, and not the square of that. What lies
/// between is for whatever else the machine does.
#[tokio::test]
async fn start_time_grows_with_attachments() {
    let (some, all) = (start_with(RECORDED / 10).await, start_with(RECORDED).await);
    assert!(all <= 50 * some, "{all:?} with {RECORDED}, {some:?} with a tenth of them");
    assert!(all <= Duration::from_secs(20), "{all:?}");
}

/// Beside somebody who lists all there is without end, attaches take as long as beside somebody who just as much keeps a
/// processor busy, or a few times that; and watchers that take nothing hold up nobody.
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

/// Attaches, while another thread does `work` over and over.
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
